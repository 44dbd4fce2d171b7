"""Debezium's transaction metadata in the topics of sinks: blocks in messages, and a topic with BEGIN and END."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique
from tests.test_docs import DOCS, blocks

from penstock.errors import UsageError
from penstock.home import Home
from penstock.sinks import delivery
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import until

TABLES = "CREATE TABLE public.orders (id int PRIMARY KEY, n int); CREATE TABLE public.items (id int PRIMARY KEY)"
Count = tuple[str, int]


class Sinks:
    """Sinks of the tables with topics of their own."""

    def __init__(self, shop: Shop, broker: SharedBroker) -> None:
        self.shop, self.broker, self.prefix = shop, broker.bootstrap, unique("meta")

    def create(self, name: str, source: str = "shop", **options: Any) -> None:
        options = {"format": "json", "snapshot": False, "provide_transaction_metadata": True, **options}
        self.shop.home.create_sink(name, source, broker=self.broker, envelope="debezium", **options)

    def wait(self) -> None:
        """Wait until all sinks have started."""
        for sink in self.shop.home.sinks():
            wait_sink(self.shop.catalog, sink)

    def error(self) -> str:
        (sink,) = self.shop.home.status().sinks
        return sink.error or ""

    def messages(self, topic: str) -> list[Any]:
        return [each.value and json.loads(each.value) for each in committed(self.broker, topic)]

    def transactions(self, topic: str, count: int) -> list[tuple[str, int | None, list[Count] | None]]:
        """Wait for this number of messages; return status and counts."""
        until(lambda: len(self.messages(topic)) >= count, f"{count} messages in {topic}")
        return [(each["status"], each["event_count"], _counts(each)) for each in self.messages(topic)]

    def blocks(self, topic: str) -> list[tuple[int, int] | None]:
        """Return the numbers of each event; None for a tombstone."""
        found = [each and each["transaction"] for each in self.messages(topic)]
        return [each and (each["total_order"], each["data_collection_order"]) for each in found]


def _counts(message: Any) -> list[Count] | None:
    collections = message["data_collections"]
    return collections and sorted((each["data_collection"], each["event_count"]) for each in collections)


def change(shop: Shop) -> None:
    """Change both tables in one transaction, then one of them in another."""
    with shop.database.connect() as session, session.transaction():
        session.execute("INSERT INTO orders VALUES (1, 0), (2, 0)")
        session.execute("INSERT INTO items VALUES (1)")
        session.execute("UPDATE orders SET id = 3 WHERE id = 2")
        session.execute("DELETE FROM items")
    shop.database.execute("INSERT INTO items VALUES (9)")


BOTH = [
    ("BEGIN", None, None),
    ("END", 6, [("public.items", 2), ("public.orders", 4)]),
    ("BEGIN", None, None),
    ("END", 1, [("public.items", 1)]),
]


def test_counts_are_those_of_the_tables_of_the_sink(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    sinks = Sinks(start_shop(TABLES), broker)
    one, each, together = (f"{sinks.prefix}.{name}" for name in ("one", "each", "together"))
    sinks.create("each_table", topic_prefix=f"{each}.")
    sinks.create("one_table", "shop.orders", topic=one, transaction_topic=f"{one}-transactions")
    sinks.create("together", topic=together, transaction_topic=f"{together}-transactions")
    sinks.wait()
    change(sinks.shop)
    assert sinks.transactions(f"{each}.transaction", 4) == BOTH
    assert sinks.blocks(f"{each}.public.orders") == [(1, 1), (2, 2), (4, 3), None, (5, 4)]
    assert sinks.blocks(f"{each}.public.items") == [(3, 1), (6, 2), None, (1, 1)]
    assert sinks.transactions(f"{together}-transactions", 4) == BOTH
    assert sinks.blocks(together) == [(1, 1), (2, 2), (3, 1), (4, 3), None, (5, 4), (6, 2), None, (1, 1)]
    assert sinks.transactions(f"{one}-transactions", 2) == [
        ("BEGIN", None, None),
        ("END", 4, [("public.orders", 4)]),
    ]
    assert sinks.blocks(one) == [(1, 1), (2, 2), (3, 3), None, (4, 4)]
    (begin, end, *_) = sinks.messages(f"{each}.transaction")
    ids = {message["transaction"]["id"] for message in sinks.messages(f"{each}.public.orders") if message}
    assert ids == {begin["id"]} == {end["id"]}


def test_messages_on_the_page(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    shown = [json.loads(block) for block in blocks(DOCS / "debezium-envelope.md", "json")]
    sinks = Sinks(start_shop(TABLES), broker)
    sinks.create("out", topic_prefix=f"{sinks.prefix}.")
    sinks.wait()
    with sinks.shop.database.connect() as session, session.transaction():
        session.execute("INSERT INTO orders VALUES (1, 0), (2, 0)")
        session.execute("INSERT INTO items VALUES (1)")
    sinks.transactions(f"{sinks.prefix}.transaction", 2)
    found = sinks.messages(f"{sinks.prefix}.transaction")
    assert [list(each) for each in found] == [list(each) for each in shown]
    assert [{**each, "id": "", "ts_ms": 0} for each in found] == [{**each, "id": "", "ts_ms": 0} for each in shown]


def test_transaction_in_several_batches(
    start_shop: Callable[..., Shop], broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_BATCH_ROWS", 10)
    monkeypatch.setattr(delivery, "_WINDOW_BYTES", 1)
    sinks = Sinks(start_shop(TABLES), broker)
    sinks.create("out", topic_prefix=f"{sinks.prefix}.")
    sinks.wait()
    for first in (0, 1000):
        with sinks.shop.database.connect() as session, session.transaction():
            session.execute(f"INSERT INTO orders SELECT n, n FROM generate_series({first} + 1, {first} + 500) n")
            session.execute(f"INSERT INTO items SELECT n FROM generate_series({first} + 1, {first} + 300) n")
    counts = ("END", 800, [("public.items", 300), ("public.orders", 500)])
    assert sinks.transactions(f"{sinks.prefix}.transaction", 4) == [("BEGIN", None, None), counts] * 2
    assert sinks.blocks(f"{sinks.prefix}.public.orders") == [(n, n) for n in range(1, 501)] * 2
    assert sinks.blocks(f"{sinks.prefix}.public.items") == [(500 + n, n) for n in range(1, 301)] * 2


def test_deleted_topic_is_not_created_again(
    start_shop: Callable[..., Shop], broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client retries until the time of the transaction is over; the topic is not created again."""
    monkeypatch.setattr(delivery, "_WRITE_SECONDS", 5.0)
    sinks = Sinks(start_shop(TABLES), broker)
    sinks.create("out", topic_prefix=f"{sinks.prefix}.")
    sinks.wait()
    sinks.shop.database.execute("INSERT INTO items VALUES (1)")
    topic = f"{sinks.prefix}.transaction"
    assert len(sinks.transactions(topic, 2)) == 2
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result()
    sinks.shop.database.execute("INSERT INTO items VALUES (2)")
    until(lambda: sinks.error(), "an error of the sink")
    sinks.shop.home.alter_sink("out", client_id="other")
    until(lambda: "was deleted" in sinks.error(), "the error of the restarted sink")
    assert topic in sinks.error()


def test_explain_lists_the_topic(
    start_shop: Callable[..., Shop], broker: SharedBroker, registry: SharedRegistry
) -> None:
    shop, prefix = start_shop(TABLES), unique("meta")
    statement = (
        f"EXPLAIN CREATE SINK out FROM shop INTO KAFKA BROKER '{broker.bootstrap}' TOPIC PREFIX '{prefix}.'"
        f" FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}' ENVELOPE DEBEZIUM"
        " WITH (provide transaction metadata = true)"
    )
    answer = shop.home.sql(statement)
    assert isinstance(answer, Answer)
    topic = f"{prefix}.transaction"
    assert (None, topic, "transaction", "avro", f"{topic}-key, {topic}-value", None) in answer.rows


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"envelope": "changes"}, "requires ENVELOPE DEBEZIUM"),
        ({"provide_transaction_metadata": False, "transaction_topic": "t"}, "requires option"),
        ({"transaction_topic": "penstock-sink-positions-out"}, "already the topic"),
        ({"transaction_topic": "no topic"}, "topic"),
        ({"transaction_topic": "shop.public.items"}, "is the topic of table public.items"),
    ],
)
def test_invalid_options(database: Any, tmp_path: Any, options: dict[str, Any], problem: str) -> None:
    database.execute(TABLES)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    given = {"envelope": "debezium", "provide_transaction_metadata": True, "topic_prefix": "shop.", **options}
    with pytest.raises(UsageError, match=problem):
        home.create_sink("out", "shop", broker="k1:9092", format="json", **given)


def test_shards_are_rejected(database: Any, tmp_path: Any) -> None:
    database.execute(TABLES)
    home = Home(tmp_path / "home")
    home.create([database.url, database.url.replace("127.0.0.1", "localhost")], "shop")
    with pytest.raises(UsageError, match="not available for shards"):
        home.create_sink(
            "out",
            "shop",
            broker="k1:9092",
            format="json",
            envelope="debezium",
            topic_prefix="shop.",
            provide_transaction_metadata=True,
        )
