"""Nested types in the stream, in binary and in text format."""

from __future__ import annotations

from typing import Any

from tests.sources.postgres.types.rendering import render
from tests.sources.postgres.types.test_types_in_snapshot import (
    EXTENSION_ROWS,
    EXTENSIONS,
    PGVECTOR,
    SETUP,
    captured_table_of,
    copied,
    printed,
)


def test_every_kind_of_column(database: Any, capture: Any, now: Any) -> None:
    definitions, rows = SETUP.split("INSERT INTO t (id)", 1)
    database.execute(definitions)
    printed_columns = [c for c in captured_table_of(database.url).columns if c.sent_as_text]
    for column in printed_columns:
        database.execute(f"ALTER TABLE t ALTER {column.name} TYPE text")
    running = capture()
    database.execute("INSERT INTO t (id)" + rows)
    database.execute("UPDATE t SET c_array = c_array || 7, c_pair.b = NULL WHERE id = 2")
    running.wait(now())
    table = captured_table_of(database.url)
    last = {change["after"]["id"]: change["after"] for change in running.changes("t")}
    again = [
        {c.name: None if row[c.name] is None else render(c.type, row[c.name]) for c in table.columns}
        for _, row in sorted(last.items())
    ]
    assert again == printed(database.url, table)


def test_every_kind_of_column_in_a_text_stream(database: Any, capture: Any, now: Any) -> None:
    """Columns that only the server can print switch the whole stream to text."""
    definitions, rows = SETUP.split("INSERT INTO t (id)", 1)
    database.execute(definitions)
    running = capture()
    database.execute("INSERT INTO t (id)" + rows)
    database.execute("UPDATE t SET c_array = c_array || 7, c_pair.b = NULL WHERE id = 2")
    running.wait(now())
    assert running.error("t") is None
    table = captured_table_of(database.url)
    assert any(column.sent_as_text for column in table.columns)
    last = {change["after"]["id"]: change["after"] for change in running.changes("t")}
    again = [
        {c.name: None if row[c.name] is None else render(c.type, row[c.name]) for c in table.columns}
        for _, row in sorted(last.items())
    ]
    assert again == printed(database.url, table)


def test_types_of_extensions_in_a_text_stream(database: Any, capture: Any, now: Any) -> None:
    """Types that Penstock does not decode switch the stream to text: it delivers what the copy reads."""
    database.needs(18, PGVECTOR)
    database.execute(EXTENSIONS)
    running = capture()
    database.execute(EXTENSION_ROWS)
    running.wait(now())
    assert running.error("t") is None
    assert [change["after"] for change in running.changes("t")] == copied(database.url, captured_table_of(database.url))


def test_types_of_extensions_in_a_binary_stream(database: Any, capture: Any, now: Any) -> None:
    database.needs(18, PGVECTOR)
    database.execute(EXTENSIONS)
    database.execute("ALTER TABLE t DROP book, DROP books, DROP area, DROP span, DROP half, DROP same")
    assert not any(column.sent_as_text for column in captured_table_of(database.url).columns)
    running = capture()
    database.execute(
        "INSERT INTO t (id) VALUES (1); INSERT INTO t VALUES (2, 'a.b_c', '*.b_c|d{1,2}', 'a & !b', '[1,-2.5,3e-08]',"
        " ARRAY['[0.1]'::vector, NULL], '{\"[1,2]\"}'), (3, '', '*', 'b', '[3.4e+38,1e-45,0]', '{}', '{}')"
    )
    running.wait(now())
    assert running.error("t") is None
    assert [change["after"] for change in running.changes("t")] == copied(database.url, captured_table_of(database.url))


def test_added_column_of_another_type(database: Any, capture: Any, now: Any) -> None:
    database.execute("CREATE EXTENSION isn; CREATE TABLE t (id int PRIMARY KEY, v int[])")
    running = capture()
    database.execute("INSERT INTO t VALUES (1, '{1}')")
    database.execute("ALTER TABLE t ADD book isbn DEFAULT '0-306-40615-2'; INSERT INTO t VALUES (2, '{2}')")
    running.wait(now())
    assert running.error("t") is None
    assert [change["after"].get("book") for change in running.changes("t")] == [None, "0-306-40615-2"]


def test_text_columns_store_values_that_their_type_cannot(database: Any, capture: Any, now: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int[], d date, n numeric(5,2), plain double precision)")
    running = capture(text_columns=("public.t.v", "public.t.d", "public.t.n"))
    database.execute("INSERT INTO t VALUES (1, '{{1},{2}}', 'infinity', 'NaN', '-0')")
    database.execute("INSERT INTO t VALUES (2, '[5:5]={1}', '0044-03-15 BC', 1, NULL)")
    running.wait(now())
    assert running.error("t") is None
    captured = [tuple(change["after"].values()) for change in running.changes("t")]
    assert captured == [(1, "{{1},{2}}", "infinity", "NaN", -0.0), (2, "[5:5]={1}", "0044-03-15 BC", "1.00", None)]
    assert str(captured[0][4]) == "-0.0"


def test_added_column_that_only_the_server_can_print(database: Any, capture: Any, now: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int[])")
    running = capture()
    database.execute("INSERT INTO t VALUES (1, '{1}')")
    database.execute("ALTER TABLE t ADD COLUMN words tsvector DEFAULT 'a:1'; INSERT INTO t VALUES (2, '{2}', 'b:2 c')")
    running.wait(now())
    assert running.error("t") is None
    assert [change["after"].get("words") for change in running.changes("t")] == [None, "'b':2 'c'"]


def test_unsupported_value_stops_its_table_with_a_hint(database: Any, capture: Any, now: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int[])")
    running = capture()
    database.execute("INSERT INTO t VALUES (1, '{1,NULL}'), (2, '{{1},{2}}')")
    running.wait(now())
    error = running.error("t")
    assert error is not None
    assert "a list cannot hold" in error.message
    assert "`text columns` = public.t.v" in error.hint
    assert running.changes("t") == []
