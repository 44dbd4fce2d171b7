"""Debezium's own consumers read the topics of our sinks: its JDBC sink connector copies the tables to another database.

::

    Postgres ─▶ home ─▶ sink, JSON with schemas ─┬─▶ JDBC sink ────────────────────────────┬─▶ another database: equal
                     └▶ sink, Avro and registry ─┴─▶ ExtractNewRecordState ─▶ JDBC sink ───┘
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Database, created_database
from tests.engine.conftest import start_spark_shop as start_spark_shop
from tests.engine.shop import Shop
from tests.engine.sink_topics import wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique

from penstock.testing.debezium import Converter
from penstock.testing.debezium_jdbc import DebeziumJdbcSink
from penstock.testing.waiting import until

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'so');
CREATE TABLE public.typed (
    id bigint PRIMARY KEY, flag boolean, small smallint, whole int NOT NULL, single real, double double precision,
    price numeric(12,3), free numeric, name text, short varchar(20), data bytea, day date, clock time, local timestamp,
    local3 timestamp(3), moment timestamptz, label uuid, doc jsonb, mood mood);
CREATE TABLE public.paired (b text, a int, v text, PRIMARY KEY (b, a));
ALTER TABLE public.paired REPLICA IDENTITY FULL;
ALTER TABLE public.paired ALTER v SET STORAGE EXTERNAL;
"""
ROWS = """
INSERT INTO public.typed
SELECT n, n % 2 = 0, -n, n, n / 8.0, 1e-200 * n, n + 0.125, -n * 1.50, 'ä "' || n || '" \\', 'n' || n,
    decode(lpad(to_hex(n), 4, '0'), 'hex'), date '1969-12-31' + n, time '03:04:05.000006' + n * interval '1 minute',
    timestamp '1969-12-31 23:59:59.999999' + n * interval '1 hour', timestamp '2026-01-01 00:00:00.123',
    timestamptz '2026-06-01 12:00:00.000001Z' + n * interval '1 day',
    ('00000000-0000-0000-0000-00000000000' || n % 10)::uuid, jsonb_build_object('n', n), 'so'
FROM generate_series({first}, {last}) n;
INSERT INTO public.paired SELECT 'b' || n, n, repeat(n || 'v', 3000) FROM generate_series({first}, {last}) n;
"""
CHANGES = (
    "INSERT INTO public.typed (id, whole) VALUES (500, 1), (501, 2)",
    "UPDATE public.typed SET whole = whole + 1, name = NULL, doc = '[1]' WHERE id IN (3, 12)",
    "UPDATE public.typed SET id = id + 100 WHERE id IN (1, 11)",
    "DELETE FROM public.typed WHERE id IN (2, 13, 500)",
    "INSERT INTO public.typed (id, whole, mood) VALUES (2, 9, 'sad')",
    "UPDATE public.paired SET a = a + 1 WHERE a % 2 = 1",  # the key alone: `v` is not sent again
    "UPDATE public.paired SET v = NULL WHERE a = 4",
    "DELETE FROM public.paired WHERE a > 17",
)
CONNECTORS = {
    "json": (Converter.JSON_WITH_SCHEMAS, False),
    "json_unwrap": (Converter.JSON_WITH_SCHEMAS, True),
    "avro": (Converter.AVRO, False),
    "avro_unwrap": (Converter.AVRO, True),
}
KEYS = {"typed": "id", "paired": "b, a"}


@pytest.fixture
def copies(database: Database) -> Iterator[Database]:
    """Another empty database."""
    with created_database(database.server) as created:
        yield created


@pytest.mark.deep
def test_jdbc_sink_copies_tables(
    start_spark_shop: Callable[..., Shop],
    copies: Database,
    broker: SharedBroker,
    registry: SharedRegistry,
    tmp_path: Path,
) -> None:
    shop = start_spark_shop(f"{TABLES}{ROWS.format(first=1, last=10)}")
    prefixes = {Converter.JSON_WITH_SCHEMAS: unique("json"), Converter.AVRO: unique("avro")}
    create_sink(shop, "plain", broker, prefixes[Converter.JSON_WITH_SCHEMAS], format="json", json_schemas=True)
    create_sink(shop, "registered", broker, prefixes[Converter.AVRO], format="avro", schema_registry=registry.url)
    for sink in ("plain", "registered"):
        wait_sink(shop.catalog, sink)
    for change in (ROWS.format(first=11, last=20), *CHANGES):
        shop.database.execute(change)
    with DebeziumJdbcSink(tmp_path / "connect", copies.url, broker.bootstrap, registry.url) as connect:
        for name, (converter, unwrap) in CONNECTORS.items():
            topics = [f"{prefixes[converter]}.public.{table}" for table in KEYS]
            connect.add(name, topics, converter, unwrap=unwrap)
        connect.start()
        for name, (converter, _) in CONNECTORS.items():
            for table, key in KEYS.items():
                copy = connect.table(name, f"{prefixes[converter]}.public.{table}")
                expected = rows(shop.database, f"public.{table}", key)
                until(partial(is_equal, connect, copies, copy, key, expected), f"rows of {copy}")


def create_sink(shop: Shop, name: str, broker: SharedBroker, prefix: str, **options: Any) -> None:
    shop.home.create_sink(
        name, "shop", broker=broker.bootstrap, topic_prefix=f"{prefix}.", envelope="debezium", **options
    )


def is_equal(connect: DebeziumJdbcSink, copies: Database, table: str, key: str, expected: list[Any]) -> bool:
    """Return whether a copy exists and has these rows."""
    connect.check()
    (exists,) = copies.execute(f"SELECT to_regclass('\"{table}\"') IS NOT NULL")[0]
    return exists and rows(copies, f'"{table}"', key) == expected


def rows(database: Database, table: str, key: str) -> list[Any]:
    """Return the rows of a table in the order of the key; numbers are equal whatever their scale."""
    found = database.execute(f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY {key}")
    return [json.loads(row, parse_float=Decimal) for (row,) in found]
