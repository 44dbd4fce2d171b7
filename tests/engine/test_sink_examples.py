"""The examples of sinks, and the messages on the page about sinks: executed, and compared with real messages."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique
from tests.test_docs import DOCS, blocks

from penstock.catalog.store import Catalog
from penstock.formats.schema_registry import Registry, RegistryAddress
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.sql.script import split_statements
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "sinks"
TABLES = """
CREATE TABLE public.orders (id int PRIMARY KEY, user_id int, card text, at timestamptz, notes text);
CREATE TABLE public.users (id int PRIMARY KEY, name text, email text, phone text);
"""
VOLATILE = {"position", "xid", "committed_at", "ts_ms", "ts_us", "ts_ns", "sequence", "db", "txId", "lsn", "name"}


class Example:
    """The statements of an example, with the addresses of a test and topics of its own."""

    def __init__(self, name: str, database: str, broker: SharedBroker, registry: SharedRegistry) -> None:
        prefix = unique("example")
        addresses = {
            "postgresql://penstock@db.example.com/shop": database,
            "k1:9092": broker.bootstrap,
            "http://registry:8081": registry.url,
            "TOPIC 'shop.": f"TOPIC '{prefix}.",
            "TOPIC PREFIX 'shop.'": f"TOPIC PREFIX '{prefix}.'",
            "TOPIC PREFIX 'public-data.'": f"TOPIC PREFIX '{prefix}.'",
        }
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        for old, new in addresses.items():
            text = text.replace(old, new)
        self.script = ";\n".join(_without_snapshot(piece.text) for piece in split_statements(text))
        self._broker, self._prefix = broker.bootstrap, prefix

    def messages(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return [(each.key, each.value) for each in committed(self._broker, f"{self._prefix}.{topic}")]

    def wait(self, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
        until(lambda: len(self.messages(topic)) >= count, f"{count} messages in {topic}")
        return self.messages(topic)


def _without_snapshot(statement: str) -> str:
    """Return a statement that creates a sink without a snapshot: base tables of this test are in memory."""
    if "CREATE SINK" not in statement:
        return statement
    if "WITH (" in statement:
        return statement.replace("WITH (", "WITH (snapshot = false,")
    return f"{statement} WITH (snapshot = false)"


def test_examples(
    database: Any,
    tmp_path: Path,
    in_process: None,
    broker: SharedBroker,
    registry: SharedRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDACT_KEY", "key of this test")
    database.execute(TABLES)
    home = Home(tmp_path / "home")
    examples = {path.stem: Example(path.name, database.url, broker, registry) for path in EXAMPLES.glob("*.sql")}
    made = [each for name in sorted(examples) for each in home.create_missing(examples[name].script)]
    assert made == [("source", "shop"), ("sink", "cdc"), ("sink", "firehose"), ("sink", "redacted")]
    with home.run(MemoryTables(), list[str]().append) as running:
        running.wait_live(PATIENCE)
        for name in examples:
            wait_sink(Catalog(catalog_path(home.path)), name)
        with database.connect() as session, session.transaction():
            session.execute("INSERT INTO users VALUES (7, 'Ann', 'ann@example.com', '555-0100')")
            session.execute("INSERT INTO orders VALUES (1, 7, '4111111111111234', '2026-11-18 03:00:00Z', 'call Ann')")
        database.execute("DELETE FROM orders")
        check_cdc(examples["cdc"], registry)
        check_firehose(examples["firehose"])
        check_redacted(examples["redacted"])


def check_cdc(example: Example, registry: SharedRegistry) -> None:
    schemas = Registry(RegistryAddress(url=registry.url))

    def decoded(framed: bytes | None) -> Any:
        if framed is None:
            return None
        registered = schemas.schema(int.from_bytes(framed[1:5], "big"))
        assert registered is not None
        return fastavro.schemaless_reader(io.BytesIO(framed[5:]), json.loads(registered.text), None)

    found = [(decoded(key), decoded(value)) for key, value in example.wait("public.orders", 3)]
    assert [key for key, _ in found] == [{"id": 1}] * 3
    assert [value and value["op"] for _, value in found] == ["c", "d", None]
    assert found[0][1]["after"]["card"] == "4111111111111234"
    assert found[0][1]["source"]["table"] == "orders"
    assert [decoded(key) for key, _ in example.wait("public.users", 1)] == [{"id": 7}]


def check_firehose(example: Example) -> None:
    found = [json.loads(value or b"") for _, value in example.wait("transactions", 2)]
    assert [[(change["op"], change["table"]) for change in one["changes"]] for one in found] == [
        [("insert", "public.users"), ("insert", "public.orders")],
        [("delete", "public.orders")],
    ]


def check_redacted(example: Example) -> None:
    (first, second) = example.wait("public.orders", 2)
    row = {"id": 1, "user_id": 7, "card": "************1234", "at": 1_794_970_800_000}
    assert (first[0], json.loads(first[1] or b"")) == (b'{"id":1}', row)
    assert second == (b'{"id":1}', None)
    [(_, user)] = example.wait("public.users", 1)
    assert user is not None
    hashed = json.loads(user)["email"]
    assert json.loads(user) == {"id": 7, "name": "withheld", "email": hashed, "phone": None}
    assert (len(hashed), int(hashed, 16) > 0) == (64, True)


def stable(value: Any) -> Any:
    """Return a message with the types of the values that differ in each run."""
    if isinstance(value, dict):
        return {name: type(each) if name in VOLATILE else stable(each) for name, each in value.items()}
    return [stable(each) for each in value] if isinstance(value, list) else value


def test_messages_on_the_page(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    page = DOCS / "how-to" / "write-to-kafka.md"
    shown = [json.loads(block) for block in blocks(page, "json")]
    (change,) = [block for block in blocks(page, "sql") if block.startswith("UPDATE")]
    columns = "id int PRIMARY KEY, status text, card text, amount numeric(10,2), at timestamptz"
    row = "(1, 'new', '4111111111111234', 12.5, '2026-11-18 03:00:00Z')"
    shop = start_shop(f"CREATE TABLE orders ({columns}); INSERT INTO orders VALUES {row}")
    topics = {envelope: unique("page") for envelope in ("upsert", "changes", "transactions", "debezium")}
    for envelope, topic in topics.items():
        shop.home.create_sink(
            envelope,
            "shop.orders",
            broker=broker.bootstrap,
            topic=topic,
            format="json",
            envelope=envelope,
            snapshot=False,
        )
    for name in topics:
        wait_sink(shop.catalog, name)
    shop.database.execute(change)
    for topic in topics.values():
        until(lambda topic=topic: committed(broker.bootstrap, topic), "a message")  # type: ignore[misc]
    found = [json.loads(committed(broker.bootstrap, topic)[0].value or b"") for topic in topics.values()]
    assert [stable(one) for one in found] == [stable(one) for one in shown]
