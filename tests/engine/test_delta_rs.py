"""The Delta tables without Spark: delta-rs, with its own query engine, reads the rows that Postgres has."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.engine.shop import Shop

from penstock.layout import base_path
from penstock.positions import Lsn
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.testing.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-the-lake-with-other-tools.md"
SETUP = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, status text, amount numeric(12,2), weight float8, ratio real, small smallint, paid boolean,
    day date, at timestamptz, local_at timestamp, data bytea, code uuid, tags text[], details jsonb
);
CREATE TABLE visits (page text, "seconds (spent)" int);
ALTER TABLE visits REPLICA IDENTITY FULL;
CREATE FUNCTION orders_of(int, int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO orders
    SELECT n, (ARRAY['new', 'paid', NULL])[1 + n % 3], n * 1.25, n / 7.0, 0.5 * n, n % 100, n % 2 = 0,
        date '1999-12-30' + n, timestamptz '2026-03-29 00:00Z' + n * interval '1 hour 1 microsecond',
        timestamp '0001-01-01' + n * interval '1 year', decode(to_hex(n + 16), 'escape'),
        md5(n::text)::uuid, ARRAY['a', NULL, n::text], jsonb_build_object('n', n)
    FROM generate_series($1, $2) n $$;
SELECT orders_of(1, 200);
INSERT INTO visits SELECT 'page ' || n % 3, n % 5 FROM generate_series(1, 60) n;
"""
CHANGES = """
BEGIN; SELECT orders_of(201, 300); DELETE FROM orders WHERE id % 7 = 0; COMMIT;
UPDATE orders SET status = 'returned', tags = '{}', details = NULL WHERE id % 11 = 0;
UPDATE orders SET id = -id WHERE id % 13 = 0;
DELETE FROM visits WHERE ctid IN (SELECT ctid FROM visits WHERE "seconds (spent)" = 2 LIMIT 5);
INSERT INTO visits VALUES (NULL, NULL), (NULL, NULL);
"""


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_delta_rs_reads_the_rows_of_postgres(start_spark_shop: Callable[..., Shop]) -> None:
    shop = start_spark_shop(SETUP)
    shop.database.execute(CHANGES)
    with shop.database.connect() as connection:
        end = wal_insert_position(connection)
    until(lambda: is_applied(shop, end), "the changes in the base tables")
    columns = "id, status, amount, weight, ratio, small, paid, day, at, local_at, data, code::text, tags, details::text"
    with shop.database.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        assert delta_rs_rows(shop, "orders", "id") == postgres_rows(
            connection, f"SELECT {columns} FROM orders ORDER BY id"
        )
        order = 'page, "seconds (spent)"'
        assert delta_rs_rows(shop, "visits", order) == postgres_rows(connection, f"TABLE visits ORDER BY {order}")
    features = DeltaTable(base_folder(shop, "orders")).protocol().reader_features or []
    assert "deletionVectors" in features
    check_page(shop)


def check_page(shop: Shop) -> None:
    """Run the code blocks of the page."""
    query, copy = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(query.replace(".penstock", str(shop.home.path)), {})
    counts = shop.database.execute("SELECT status, count(*) FROM orders GROUP BY status")
    assert all(re.search(rf"{status}.*\b{count}\b", printed.getvalue()) for status, count in counts if status)
    others = str(shop.home.path.parent / "orders-for-others")
    exec(copy.replace("orders-for-others", others), {"home": shop.home, "spark": shop.spark})
    assert DeltaTable(others).to_pyarrow_table().num_rows == sum(count for _, count in counts)


def is_applied(shop: Shop, position: Lsn) -> bool:
    """Whether the log has reached a position, and the base tables have all changes of the log."""
    (source,) = shop.home.status().sources
    read = source.durable is not None and Lsn.parse(source.durable) >= position
    return read and all(table.behind == 0 for table in source.tables)


def base_folder(shop: Shop, table: str) -> str:
    return str(base_path(shop.home.path, "shop", table))


def delta_rs_rows(shop: Shop, table: str, order: str) -> list[tuple[Any, ...]]:
    query = QueryBuilder().register("t", DeltaTable(base_folder(shop, table)))
    rows = pa.table(query.execute(f"SELECT * FROM t ORDER BY {order}").read_all())
    return [tuple(row.values()) for row in rows.to_pylist()]


def postgres_rows(connection: psycopg.Connection[tuple[Any, ...]], query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query).fetchall()
