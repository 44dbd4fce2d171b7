"""Sinks of a running home, into real topics: what a consumer with ``read_committed`` sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.engine.topic import Topic
from tests.servers import SharedBroker, unique

from penstock.catalog.states import SinkState
from penstock.errors import UsageError
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import until

SETUP = "CREATE TABLE public.orders (id int PRIMARY KEY, name text, amount numeric(10,2))"


@dataclass(frozen=True)
class Message:
    key: Any
    value: Any


class Topics:
    """Topics with a prefix of their own, and what is committed in them."""

    def __init__(self, broker: SharedBroker) -> None:
        self.broker = broker.bootstrap
        self.prefix = f"{unique('shop')}."

    def committed(self, table: str = "public.orders", key_form: Callable[[bytes], Any] = json.loads) -> list[Message]:
        """Return the committed messages of a topic with one partition, in order."""
        found = committed(self.broker, f"{self.prefix}{table}")
        return [Message(m.key and key_form(m.key), m.value and json.loads(m.value)) for m in found]


@pytest.fixture
def topics(broker: SharedBroker) -> Topics:
    return Topics(broker)


def create(shop: Shop, topics: Topics, envelope: str, *, name: str = "out", **options: Any) -> None:
    options = {"snapshot": False, "format": "json", "topic_prefix": topics.prefix, "partitions": 1, **options}
    shop.home.create_sink(name, "shop", broker=topics.broker, envelope=envelope, **options)


def state(shop: Shop, sink: str) -> SinkState | None:
    found = shop.catalog.sinks.get(sink)
    return None if found is None else found.state


def wait_started(shop: Shop, sink: str = "out") -> None:
    wait_sink(shop.catalog, sink)


def test_upsert(start_shop: Callable[..., Shop], topics: Topics) -> None:
    shop = start_shop(SETUP)
    create(shop, topics, "upsert")
    wait_started(shop)
    shop.database.execute("INSERT INTO orders VALUES (1, 'a', 1.5), (2, 'b', NULL)")
    shop.database.execute("UPDATE orders SET name = 'c' WHERE id = 1")
    shop.database.execute("UPDATE orders SET id = 3 WHERE id = 2")
    shop.database.execute("DELETE FROM orders WHERE id = 1")
    until(lambda: len(topics.committed()) == 6, "six messages")
    assert topics.committed() == [
        Message({"id": 1}, {"id": 1, "name": "a", "amount": 1.5}),
        Message({"id": 2}, {"id": 2, "name": "b", "amount": None}),
        Message({"id": 1}, {"id": 1, "name": "c", "amount": 1.5}),
        Message({"id": 2}, None),
        Message({"id": 3}, {"id": 3, "name": "b", "amount": None}),
        Message({"id": 1}, None),
    ]


def test_envelopes_of_one_source(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    keyless = "CREATE TABLE public.items (id int, order_id int); ALTER TABLE public.items REPLICA IDENTITY FULL"
    shop = start_shop(f"{SETUP}; {keyless}")
    found = {name: Topics(broker) for name in ("changes", "debezium", "transactions")}
    common: dict[str, Any] = {"format": "json", "snapshot": False, "partitions": 1}
    for name, topics in found.items():
        place = {"topic": f"{topics.prefix}all"} if name == "transactions" else {"topic_prefix": topics.prefix}
        shop.home.create_sink(name, "shop", broker=topics.broker, envelope=name, **place, **common)
    for name in found:
        wait_started(shop, name)
    with shop.database.connect() as session, session.transaction():
        session.execute("INSERT INTO orders VALUES (1, 'a', 1.5)")
        session.execute("INSERT INTO items VALUES (7, 1)")
        session.execute("UPDATE orders SET name = 'b'")
    shop.database.execute("DELETE FROM orders")
    until(lambda: len(found["changes"].committed()) == 3, "changes")
    assert [(m.key, m.value["op"], m.value["after"]) for m in found["changes"].committed()] == [
        ({"id": 1}, "insert", {"id": 1, "name": "a", "amount": 1.5}),
        ({"id": 1}, "update", {"id": 1, "name": "b", "amount": 1.5}),
        ({"id": 1}, "delete", None),
    ]
    assert [m.key for m in found["changes"].committed("public.items")] == [None]
    until(lambda: len(found["debezium"].committed()) == 4, "records of Debezium")
    records = found["debezium"].committed()
    assert [m.value and m.value["op"] for m in records] == ["c", "u", "d", None]
    assert records[0].value["source"]["table"] == "orders"
    until(lambda: len(found["transactions"].committed("all", bytes.decode)) == 2, "transactions")
    first, second = found["transactions"].committed("all", bytes.decode)
    assert [(c["table"], c["op"]) for c in first.value["changes"]] == [
        ("public.orders", "insert"),
        ("public.items", "insert"),
        ("public.orders", "update"),
    ]
    assert [(c["table"], c["op"]) for c in second.value["changes"]] == [("public.orders", "delete")]
    assert first.key == first.value["position"]


def test_error_of_one_sink_is_its_own(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    shop, topics = start_shop(SETUP), Topics(broker)
    create(shop, topics, "upsert")
    create(shop, topics, "upsert", name="broken", create_topics=False, partitions=None, topic_prefix="missing.")
    wait_started(shop)
    wait_started(shop, "broken")
    shop.database.execute("INSERT INTO orders VALUES (1, 'a', 1.5)")
    until(lambda: len(topics.committed()) == 1, "a message")
    until(lambda: state(shop, "broken") is SinkState.FAILED, "the sink to fail")
    failed = next(sink for sink in shop.home.status().sinks if sink.name == "broken")
    assert "missing.public.orders" in (failed.error or "")
    shop.home.drop_sink("broken")
    until(lambda: shop.catalog.sinks.get("broken") is None, "the sink to be dropped")
    shop.database.execute("INSERT INTO orders VALUES (2, 'a', 1.5)")
    until(lambda: len(topics.committed()) == 2, "another message")
    until(lambda: shop.home.status().sinks[0].behind == 0, "the report of the sink")
    shown = shop.home.status().sinks[0]
    assert shown.position is not None
    assert shown.error is None
    with closing(shop.catalog.log("shop").reader()) as reader:
        assert "sink broken" not in [lease.reader for lease in reader.leases()]


def test_resumes_where_it_stopped(start_shop: Callable[..., Shop], topics: Topics) -> None:
    shop = start_shop(SETUP)
    create(shop, topics, "upsert")
    wait_started(shop)
    shop.database.execute("INSERT INTO orders VALUES (1, 'a', 1.5)")
    until(lambda: len(topics.committed()) == 1, "a message")
    shop.home.alter_sink("out", client_id="other")  # restarts it
    shop.database.execute("INSERT INTO orders VALUES (2, 'a', 1.5)")
    until(lambda: len(topics.committed()) == 2, "another message")
    assert [m.key["id"] for m in topics.committed()] == [1, 2]


def test_explain_reports_topics_that_cannot_be_used(start_shop: Callable[..., Shop], topics: Topics) -> None:
    shop = start_shop(SETUP)
    sink = f"FROM shop INTO KAFKA BROKER '{topics.broker}' TOPIC PREFIX '{topics.prefix}' FORMAT JSON ENVELOPE UPSERT"
    usable = shop.home.sql(f"EXPLAIN SINK x {sink}")
    missing = shop.home.sql(f"EXPLAIN SINK x {sink} WITH (create topics = false)")
    assert isinstance(usable, Answer)
    assert isinstance(missing, Answer)
    assert [row[-1] for row in usable.rows] == [None]
    assert "does not exist" in str(missing.rows[0][-1])
    assert topics.committed() == []


def test_sink_of_a_topic_with_state_is_rejected(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    shop, topic = start_shop(SETUP), Topic(broker, "clicks")
    row = {"id": 1}
    topic.send([(row, {"op": "u", "before": row, "after": row, "source": {"connector": "postgresql"}})])
    place = f"KAFKA BROKER '{broker.bootstrap}' TOPIC '{topic.name}'"
    shop.home.sql(f"CREATE SOURCE clicks FROM {place} KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM")
    with pytest.raises(UsageError, match="ENVELOPE DEBEZIUM compares"):
        shop.home.create_sink("x", "clicks", broker="b:9092", topic="t", format="json", envelope="changes")
    with pytest.raises(UsageError, match="ENVELOPE DEBEZIUM compares"):
        shop.home.sink("y", "clicks.clicks", "my.sinks:to_http")
    assert shop.home.sinks() == []
