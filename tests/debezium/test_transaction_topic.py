"""The transaction topics of our sinks and of a running Debezium, for the same transactions, in JSON and Avro.

A sink of one table is compared with a Debezium that captures that table alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.debezium.recording import schema_id
from tests.engine.conftest import start_shop as start_shop
from tests.engine.shop import Shop
from tests.engine.sink_topics import Committed, committed, wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique

from penstock.formats.schema_registry import Registry, RegistryAddress
from penstock.testing.debezium import Converter, Debezium
from penstock.testing.waiting import until

TABLES = """
CREATE TABLE public.orders (id int PRIMARY KEY, n int);
CREATE TABLE public.items (id int PRIMARY KEY);
ALTER TABLE public.items REPLICA IDENTITY FULL
"""
TRANSACTIONS = (
    ("INSERT INTO orders VALUES (1, 0), (2, 0)", "INSERT INTO items VALUES (1)", "UPDATE orders SET n = 1"),
    ("INSERT INTO items VALUES (2)",),
    ("UPDATE orders SET id = 3 WHERE id = 2", "DELETE FROM items WHERE id = 1", "DELETE FROM orders WHERE id = 1"),
    ("INSERT INTO orders SELECT n, n FROM generate_series(10, 200) n", "INSERT INTO items VALUES (4), (5)"),
    ("DELETE FROM items",),
)
CASES: dict[str, tuple[Converter, tuple[str, ...], dict[str, Any]]] = {
    "json": (Converter.JSON_WITH_SCHEMAS, ("orders", "items"), {"format": "json", "json_schemas": True}),
    "avro": (Converter.AVRO, ("orders", "items"), {"format": "avro"}),
    "one_table": (Converter.JSON_WITH_SCHEMAS, ("orders",), {"format": "json", "json_schemas": True}),
}


class Reader:
    """Decodes messages: each is its schema and its content."""

    def __init__(self, bootstrap: str, registry: str) -> None:
        self._bootstrap, self._registry = bootstrap, Registry(RegistryAddress(url=registry))

    def messages(self, topic: str, converter: Converter) -> list[tuple[Any, Any]]:
        return [self._message(each, converter) for each in committed(self._bootstrap, topic)]

    def _message(self, message: Committed, converter: Converter) -> tuple[Any, Any]:
        key, value = (self._decoded(part, converter) for part in (message.key, message.value))
        return key, value

    def _decoded(self, part: bytes | None, converter: Converter) -> Any:
        if part is None or converter is Converter.JSON_WITH_SCHEMAS:
            return part and json.loads(part)
        registered = self._registry.schema(schema_id(part))
        assert registered is not None
        schema = json.loads(registered.text)
        return {"schema": schema, "payload": fastavro.schemaless_reader(io.BytesIO(part[5:]), schema, None)}


def comparable(transactions: list[tuple[Any, Any]]) -> list[Any]:
    """Return messages of a transaction topic without positions and times, and without transactions without events."""
    empty = {value["payload"]["id"] for _, value in transactions if value["payload"]["event_count"] == 0}
    found = []
    for key, value in transactions:
        payload = value["payload"]
        assert key["payload"] == {"id": payload["id"]}
        if payload["id"] not in empty and (payload["status"] == "END" or _xid(payload["id"]) not in map(_xid, empty)):
            collections = sorted(payload["data_collections"] or (), key=lambda each: str(each["data_collection"]))
            content = (payload["status"], _xid(payload["id"]), payload["event_count"], collections)
            found.append((key["schema"], value["schema"], content, type(payload["ts_ms"])))
    return found


def blocks(messages: list[tuple[Any, Any]]) -> list[Any]:
    """Return the transaction block of each message with the transaction id of Postgres alone; None for a tombstone."""
    found = [value and value["payload"]["transaction"] for _, value in messages]
    return [each and (_xid(each["id"]), each["total_order"], each["data_collection_order"]) for each in found]


def _xid(id_: str) -> str:
    return id_.partition(":")[0]


@pytest.mark.deep
def test_topics_are_those_of_debezium(
    start_shop: Callable[..., Shop], broker: SharedBroker, registry: SharedRegistry, tmp_path: Path
) -> None:
    shop, prefix = start_shop(TABLES), unique("tx").replace("-", "_")  # a valid name in Avro
    for name, (converter, tables, options) in CASES.items():
        used = {"schema_registry": registry.url} if converter is Converter.AVRO else {}
        shop.home.create_sink(
            name,
            "shop" if len(tables) > 1 else f"shop.{tables[0]}",
            broker=broker.bootstrap,
            envelope="debezium",
            snapshot=False,
            topic_prefix=f"{prefix}.ours.{name}.",
            provide_transaction_metadata=True,
            **options,
            **used,
        )
    for name in CASES:
        wait_sink(shop.catalog, name)
    with Debezium(tmp_path / "debezium", shop.database.url, broker.bootstrap, registry.url) as debezium:
        for name, (converter, tables, _) in CASES.items():
            debezium.add(f"{prefix}.theirs.{name}", [f"public.{table}" for table in tables], converter)
        debezium.start()
        debezium.await_all()
        for statements in TRANSACTIONS:
            with shop.database.connect() as session, session.transaction():
                for statement in statements:
                    session.execute(statement)
        debezium.await_all()
    read = Reader(broker.bootstrap, registry.url)
    for name, (converter, tables, _) in CASES.items():
        ours, theirs = (f"{prefix}.{who}.{name}" for who in ("ours", "theirs"))
        expected = comparable(read.messages(f"{theirs}.transaction", converter))
        assert len(expected) == 2 * (5 if len(tables) > 1 else 3)
        until(lambda: len(read.messages(f"{ours}.transaction", converter)) >= len(expected), name)  # noqa: B023
        assert comparable(read.messages(f"{ours}.transaction", converter)) == expected
        for table in tables:
            both = [blocks(read.messages(f"{who}.public.{table}", converter)) for who in (ours, theirs)]
            assert both[0] == both[1]
            assert any(both[0])
