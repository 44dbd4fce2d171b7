"""A resolved query is valid: Spark runs it, and reads the views in place of the live tables."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.sql.query import resolve

TABLES: dict[tuple[str, ...], str] = {("shop", "orders"): "shop.orders", ("shop", "items"): "shop.items"}
QUERIES: list[tuple[str, list[object]]] = [
    ("SELECT shop.orders.id FROM shop.orders JOIN shop.items USING (id) ORDER BY 1", [1, 2]),
    ("SELECT o.id FROM (shop.orders o JOIN shop.items i ON o.id = i.id) WHERE i.n = 'b'", [2]),
    ("SELECT max(id) FROM shop.orders WHERE EXISTS (SELECT 1 FROM shop.items i WHERE i.id = shop.orders.id)", [2]),
    ("SELECT x.id FROM shop.orders, LATERAL (SELECT shop.orders.id + 10 AS id) x ORDER BY 1", [11, 12, 13]),
    ("WITH shop AS (SELECT struct(7 AS id) AS orders) SELECT shop.orders.id FROM shop", [7]),
    ("SELECT shop.orders.id, (SELECT max(id) FROM shop.orders) FROM (SELECT struct(7 AS id) AS orders) shop", [7]),
    ("FROM shop.orders |> WHERE id > 2 |> SELECT shop.orders.id", [3]),
    ("TABLE shop.orders ORDER BY id", [1, 2, 3]),
    ("SELECT count(*) FROM shop.orders TABLESAMPLE (100 PERCENT) o", [3]),
    ("SELECT 'it\\'s -- shop.orders' FROM shop.orders /* shop.items */ LIMIT 1 -- x", ["it's -- shop.orders"]),
    ("DESCRIBE shop.orders", ["id", "n"]),
    ("SHOW COLUMNS IN shop.orders", ["id", "n"]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "firsts"), QUERIES)
def test_query_runs(spark: SparkSession, query: str, firsts: list[object]) -> None:
    resolved = resolve(query, TABLES, "resolved_")
    for view, wanted in resolved.views.items():
        rows = "(1, 'a'), (2, 'b'), (3, 'c')" if wanted.table == "shop.orders" else "(1, 'a'), (2, 'b')"
        spark.sql(f"SELECT * FROM VALUES {rows} AS t(id, n)").createOrReplaceTempView(view)
    assert [row[0] for row in spark.sql(resolved.text).collect()] == firsts


def test_query_can_be_explained(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("explained_1")
    resolved = resolve("EXPLAIN SELECT * FROM shop.orders", TABLES, "explained_")
    assert "Range" in spark.sql(resolved.text).collect()[0][0]
