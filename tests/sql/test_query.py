"""Names of live tables in a query are replaced where a table is expected; other text is unchanged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.errors import UsageError
from penstock.positions import Lsn
from penstock.sql.errors import SqlError
from penstock.sql.query import TableReference, resolve

TABLES = {
    ("shop", "orders"): "shop.orders",
    ("shop", "public", "orders"): "shop.orders",
    ("shop", "items"): "shop.items",
    ("shop", "public", "items"): "shop.items",
    ("shop", "order items"): "shop.order items",
    ("bank", "select"): "bank.select",
}

O, I = "v1 AS `orders`", "v2 AS `items`"  # noqa: E741

CASES = [
    ("SELECT * FROM shop.orders", f"SELECT * FROM {O}"),
    ("select * from SHOP.Orders", "select * from v1 AS `Orders`"),
    ("SELECT * FROM shop . orders", f"SELECT * FROM {O}"),
    ("SELECT * FROM shop.orders AS o", "SELECT * FROM v1 AS o"),
    ("SELECT * FROM shop.orders o", "SELECT * FROM v1 o"),
    ("SELECT * FROM shop.orders `o`", "SELECT * FROM v1 `o`"),
    ("SELECT * FROM shop.orders date", "SELECT * FROM v1 date"),
    ("SELECT * FROM shop.public.orders", f"SELECT * FROM {O}"),
    ("SELECT * FROM `shop`.`orders`", f"SELECT * FROM {O}"),
    ("SELECT * FROM shop.`order items`", "SELECT * FROM v1 AS `order items`"),
    ("SELECT * FROM bank.select", "SELECT * FROM v1 AS `select`"),
    ("SELECT * FROM shop.orders;", f"SELECT * FROM {O};"),
    ("SELECT * FROM shop.orders, shop.items", f"SELECT * FROM {O}, {I}"),
    ("SELECT * FROM shop.orders o, shop.items i", "SELECT * FROM v1 o, v2 i"),
    ("SELECT * FROM shop.orders JOIN shop.items USING (id)", f"SELECT * FROM {O} JOIN {I} USING (id)"),
    (
        "SELECT * FROM shop.orders LEFT OUTER JOIN shop.items ON shop.orders.id = shop.items.id",
        f"SELECT * FROM {O} LEFT OUTER JOIN {I} ON `orders`.id = `items`.id",
    ),
    (
        "SELECT * FROM a JOIN shop.orders o ON a.x = o.x, shop.items",
        "SELECT * FROM a JOIN v1 o ON a.x = o.x, v2 AS `items`",
    ),
    ("SELECT * FROM shop.orders CROSS JOIN shop.items", f"SELECT * FROM {O} CROSS JOIN {I}"),
    ("SELECT * FROM shop.orders LEFT ANTI JOIN shop.items ON true", f"SELECT * FROM {O} LEFT ANTI JOIN {I} ON true"),
    ("SELECT * FROM shop.orders NATURAL JOIN shop.items", f"SELECT * FROM {O} NATURAL JOIN {I}"),
    ("SELECT * FROM shop.orders a JOIN shop.orders b", "SELECT * FROM v1 a JOIN v1 b"),
    ("SELECT * FROM (shop.orders o JOIN shop.items i ON true)", "SELECT * FROM (v1 o JOIN v2 i ON true)"),
    ("SELECT shop.orders.id FROM shop.orders", f"SELECT `orders`.id FROM {O}"),
    ("SELECT shop.public.orders.id FROM shop.orders", f"SELECT `orders`.id FROM {O}"),
    ("SELECT shop.orders.* FROM shop.orders", f"SELECT `orders`.* FROM {O}"),
    ("SELECT orders.id, o.public.id FROM shop.orders", f"SELECT orders.id, o.public.id FROM {O}"),
    ("SELECT count(shop.orders.id) FROM shop.orders", f"SELECT count(`orders`.id) FROM {O}"),
    (
        "SELECT id FROM shop.orders WHERE shop.orders.id IN (1, 2) GROUP BY shop.orders.id, shop.orders.x"
        " HAVING max(shop.orders.y) > 1 ORDER BY shop.orders.id, shop.orders.x LIMIT 3",
        f"SELECT id FROM {O} WHERE `orders`.id IN (1, 2) GROUP BY `orders`.id, `orders`.x"
        " HAVING max(`orders`.y) > 1 ORDER BY `orders`.id, `orders`.x LIMIT 3",
    ),
    (
        "SELECT * FROM shop.orders SORT BY shop.orders.a, shop.orders.b",
        f"SELECT * FROM {O} SORT BY `orders`.a, `orders`.b",
    ),
    ("SELECT extract(year FROM shop.orders.at) FROM shop.orders", f"SELECT extract(year FROM `orders`.at) FROM {O}"),
    ("SELECT trim(BOTH 'x' FROM shop.orders.a) FROM shop.orders", f"SELECT trim(BOTH 'x' FROM `orders`.a) FROM {O}"),
    (
        "SELECT a IS DISTINCT FROM shop.orders.b, shop.orders.c FROM shop.orders",
        f"SELECT a IS DISTINCT FROM `orders`.b, `orders`.c FROM {O}",
    ),
    (
        "SELECT * FROM (SELECT * FROM shop.orders) s, shop.items",
        f"SELECT * FROM (SELECT * FROM {O}) s, {I}",
    ),
    (
        "SELECT (SELECT max(id) FROM shop.items) FROM shop.orders"
        " WHERE EXISTS (SELECT 1 FROM shop.items i, bank.select)",
        "SELECT (SELECT max(id) FROM v1 AS `items`) FROM v2 AS `orders`"
        " WHERE EXISTS (SELECT 1 FROM v1 i, v3 AS `select`)",
    ),
    (
        "WITH orders AS (SELECT * FROM shop.orders), shop AS (SELECT 1) SELECT * FROM orders, shop, shop.items",
        f"WITH orders AS (SELECT * FROM {O}), shop AS (SELECT 1) SELECT * FROM orders, shop, {I}",
    ),
    ("SELECT * FROM shop.orders UNION ALL SELECT * FROM shop.items", f"SELECT * FROM {O} UNION ALL SELECT * FROM {I}"),
    ("SELECT 'FROM shop.orders' FROM shop.orders", f"SELECT 'FROM shop.orders' FROM {O}"),
    ('SELECT "FROM shop.orders" FROM shop.orders', f'SELECT "FROM shop.orders" FROM {O}'),
    ("SELECT 1 -- FROM shop.orders\nFROM shop.orders", f"SELECT 1 -- FROM shop.orders\nFROM {O}"),
    ("SELECT 1 /* FROM shop.orders */ FROM shop.orders", f"SELECT 1 /* FROM shop.orders */ FROM {O}"),
    ("SELECT 'é😀''', x FROM shop.orders -- é", f"SELECT 'é😀''', x FROM {O} -- é"),
    ("SELECT *\n\tFROM\n\tshop.orders\n\tWHERE x", f"SELECT *\n\tFROM\n\t{O}\n\tWHERE x"),
    ("SELECT * FROM shop.orders TABLESAMPLE (10 PERCENT)", "SELECT * FROM v1 TABLESAMPLE (10 PERCENT)"),
    (
        "SELECT * FROM shop.orders LATERAL VIEW explode(shop.orders.tags) t AS tag, other",
        f"SELECT * FROM {O} LATERAL VIEW explode(`orders`.tags) t AS tag, other",
    ),
    ("SELECT * FROM shop/* a */./* b */orders -- c", f"SELECT * FROM {O} -- c"),
    ("SELECT /*+ REPARTITION(3) */ * FROM shop.orders", f"SELECT /*+ REPARTITION(3) */ * FROM {O}"),
    ("SELECT 'it\\'s', r'\\' FROM shop.orders", f"SELECT 'it\\'s', r'\\' FROM {O}"),
    ("SELECT * FROM ((shop.orders)) x", f"SELECT * FROM (({O})) x"),
    ("FROM shop.orders SELECT shop.orders.id", f"FROM {O} SELECT `orders`.id"),
    (
        "FROM shop.orders |> WHERE id > 1 |> JOIN shop.items USING (id) |> SELECT shop.items.id",
        f"FROM {O} |> WHERE id > 1 |> JOIN {I} USING (id) |> SELECT `items`.id",
    ),
    (
        "SELECT * FROM shop.orders, LATERAL (SELECT * FROM shop.items WHERE shop.items.id = shop.orders.id)",
        f"SELECT * FROM {O}, LATERAL (SELECT * FROM {I} WHERE `items`.id = `orders`.id)",
    ),
    (
        "SELECT * FROM shop.orders o WHERE EXISTS (SELECT 1 FROM shop.items WHERE shop.items.id = o.id)",
        "SELECT * FROM v1 o WHERE EXISTS (SELECT 1 FROM v2 AS `items` WHERE `items`.id = o.id)",
    ),
    (
        "WITH shop AS (SELECT struct(1 AS id) AS orders) SELECT shop.orders.id, i.id FROM shop, shop.items i",
        "WITH shop AS (SELECT struct(1 AS id) AS orders) SELECT shop.orders.id, i.id FROM shop, v1 i",
    ),
    (
        "SELECT shop.orders.id, (SELECT max(shop.orders.id) FROM shop.orders) FROM t AS shop",
        f"SELECT shop.orders.id, (SELECT max(`orders`.id) FROM {O}) FROM t AS shop",
    ),
    ("SELECT shop.orders.id FROM shop.orders o", "SELECT shop.orders.id FROM v1 o"),
    (
        "MERGE INTO lake.copy c USING shop.orders ON c.id = shop.orders.id WHEN NOT MATCHED THEN INSERT *",
        f"MERGE INTO lake.copy c USING {O} ON c.id = `orders`.id WHEN NOT MATCHED THEN INSERT *",
    ),
    ("EXPLAIN EXTENDED SELECT * FROM shop.orders", f"EXPLAIN EXTENDED SELECT * FROM {O}"),
    ("-- why\nexplain SELECT 'a;b' FROM shop.orders", f"-- why\nexplain SELECT 'a;b' FROM {O}"),
    ("DESCRIBE shop.orders", "DESCRIBE v1"),
    ("DESC TABLE EXTENDED shop.orders", "DESC TABLE EXTENDED v1"),
    ("SHOW COLUMNS IN shop.orders", "SHOW COLUMNS IN v1"),
    ("TABLE shop.orders", "TABLE v1"),
    ("SELECT * FROM f(TABLE(shop.orders), x => TABLE shop.items)", "SELECT * FROM f(TABLE(v1), x => TABLE v2)"),
]


@pytest.mark.parametrize(("query", "wanted"), CASES)
def test_names_are_replaced(query: str, wanted: str) -> None:
    assert resolve(query, TABLES, "v").text == wanted


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "",
        "SELECT * FROM orders",
        "SELECT * FROM other.orders",
        "SELECT * FROM shop.unknown",
        "SELECT shop.orders FROM t AS shop",
        "SELECT a.shop.orders FROM a",
        "SELECT 1.5, 2.x FROM t",
        "SELECT f(shop.orders) FROM t",
        "SHOW TABLES",
        "SELECT * FROM `shop.orders`",
        "SELECT shop.orders.id FROM t AS shop",
        "DROP TABLE shop.orders",
        "CREATE TABLE shop.orders (id INT)",
        "DESCRIBE FUNCTION shop.orders",
    ],
)
def test_other_names_are_unchanged(query: str) -> None:
    found = resolve(query, TABLES, "v")
    assert (found.text, found.views) == (query, {})


def test_each_table_has_one_view() -> None:
    found = resolve("SELECT * FROM shop.orders a, shop.items, shop.public.orders b", TABLES, "p_")
    assert found.views == {"p_1": TableReference("shop.orders"), "p_2": TableReference("shop.items")}
    assert found.text == "SELECT * FROM p_1 a, p_2 AS `items`, p_1 b"


NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATE = "TIMESTAMP '2026-11-15T12:00:00Z'"

AS_OF = [
    (f"SELECT * FROM shop.orders AS OF {LATE}", f"SELECT * FROM {O}", NOON),
    (f"SELECT * FROM shop.orders AS OF {LATE} o", "SELECT * FROM v1 o", NOON),
    (
        f"SELECT * FROM shop.orders as of {LATE.replace('TIMESTAMP', 'timestamp')} AS o WHERE 1",
        "SELECT * FROM v1 AS o WHERE 1",
        NOON,
    ),
    ("SELECT * FROM shop.orders AS OF LSN '0/1F' WHERE shop.orders.id > 1", None, Lsn(31)),
    ("SELECT * FROM (SELECT * FROM shop.orders\n AS OF\n LSN '0/1F') s", None, Lsn(31)),
    ("SELECT * FROM shop.orders AS OF TIMESTAMP '2026-11-15 13:00:00+01:00'", f"SELECT * FROM {O}", NOON),
    ("SELECT * FROM shop.orders AS of JOIN x ON of.id = x.id", "SELECT * FROM v1 AS of JOIN x ON of.id = x.id", None),
    ("SELECT * FROM shop.orders AS OF", "SELECT * FROM v1 AS OF", None),
]


@pytest.mark.parametrize(("query", "wanted", "as_of"), AS_OF)
def test_as_of_clause(query: str, wanted: str | None, as_of: datetime | Lsn | None) -> None:
    found = resolve(query, TABLES, "v")
    assert found.views == {"v1": TableReference("shop.orders", as_of)}
    assert wanted is None or found.text == wanted
    assert "LSN" not in found.text


def test_table_at_two_positions_has_two_views() -> None:
    query = "SELECT * FROM shop.orders AS OF LSN '0/1' a JOIN shop.orders b, shop.orders AS OF LSN '0/2', shop.items"
    found = resolve(query, TABLES, "v")
    assert found.text == "SELECT * FROM v1 a JOIN v2 b, v3 AS `orders`, v4 AS `items`"
    assert [wanted.as_of for wanted in found.views.values()] == [1, None, 2, None]


def test_as_of_clause_of_other_tables_is_unchanged() -> None:
    query = "SELECT * FROM lake.orders AS OF TIMESTAMP 'x'"
    assert resolve(query, TABLES, "v").text == query


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM shop.orders AS OF '2026-11-15'", "line 1, column 33: syntax error at or near .'2026-11-15'"),
        (
            "SELECT *\nFROM shop.orders AS OF TIMESTAMP x",
            "line 2, column 34: syntax error at or near .x.: expected AS OF",
        ),
        ("SELECT * FROM shop.orders AS OF VERSION 3", 'line 1, column 33: syntax error at or near "VERSION"'),
        ("SELECT * FROM shop.orders AS OF LSN '2026-11-15T12:00Z'", "column 37: invalid LSN"),
        ("SELECT * FROM shop.orders AS OF TIMESTAMP '0/1'", 'column 43: invalid timestamp "0/1"'),
        ("SELECT * FROM shop.orders AS OF TIMESTAMP 'noon'", 'column 43: invalid timestamp "noon"'),
        (
            "SELECT * FROM shop.orders TIMESTAMP AS OF '2026-11-15'",
            'column 27: .* near "TIMESTAMP": expected AS OF before',
        ),
        ("SELECT * FROM shop.orders AS OF LSN", "column 36: syntax error at end of input: expected AS OF"),
        ("SELECT * FROM shop.orders FOR VERSION AS OF 3", "(?s)column 27: .*For example: AS OF TIMESTAMP"),
        ("SELECT * FROM shop.orders AS OF TIMESTAMP '2026-11-15 12:00'", "(?s)has no time zone.*12:00:00Z"),
    ],
)
def test_invalid_as_of_clause_is_rejected_with_its_position(query: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(query, TABLES, "v")


@pytest.mark.parametrize("query", ["SELECT 'open", "SELECT `open", "SELECT /* open"])
def test_unterminated_text_is_rejected(query: str) -> None:
    with pytest.raises(UsageError, match=r'unterminated .* at or near ".open"|comment at or near "/. open"'):
        resolve(query, TABLES, "v")


def test_aliased_table_has_both_names() -> None:
    tables = {("shop", "bills"): "shop.bills", ("shop", "public", "invoices"): "shop.bills"}
    found = resolve("SELECT shop.public.invoices.id, shop.bills.id FROM shop.bills", tables, "v")
    assert found.text == "SELECT `bills`.id, `bills`.id FROM v1 AS `bills`"


def test_quote_in_a_name_is_quoted_in_its_alias() -> None:
    found = resolve("SELECT * FROM shop.`it``s`", {("shop", "it`s"): "shop.it`s"}, "v")
    assert found.text == "SELECT * FROM v1 AS `it``s`"


def test_error_shows_its_position() -> None:
    with pytest.raises(SqlError) as caught:
        resolve("SELECT *\n  FROM shop.orders AS OF LSN 'x'", TABLES, "v")
    assert str(caught.value).startswith("line 2, column 30: ")
    assert caught.value.excerpt == "  FROM shop.orders AS OF LSN 'x'\n                             ^"
