"""Sinks with ``delivery = 'at least once'``, on real Spark and real topics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique

from penstock.sinks.call_record import CallRecord, RecordedCall, calls_path
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE public.orders (
  id int PRIMARY KEY, status text, card text, amount numeric(10, 2), at timestamptz, notes text);
ALTER TABLE orders ALTER notes SET STORAGE EXTERNAL;
INSERT INTO orders SELECT n, 'new', 'canary-' || n, n / 7.0, '2026-11-18 03:00Z', repeat('x', 3000)
  FROM generate_series(1, 50) n
"""
CHANGES = (
    "UPDATE orders SET status = 'paid' WHERE id <= 10",
    "UPDATE orders SET id = 1000 WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
    "INSERT INTO orders SELECT n, 'late', 'canary', n, now(), NULL FROM generate_series(2001, 2005) n",
    "UPDATE orders SET status = 'again' WHERE id BETWEEN 3 AND 5",
)
NEW = range(5000, 8000)
MANY = (
    f"INSERT INTO orders SELECT n, 'a' FROM generate_series({NEW[0]}, {NEW[-1]}) n",
    f"UPDATE orders SET status = 'b' WHERE id >= {NEW[0]}",
    f"UPDATE orders SET status = 'c' WHERE id >= {NEW[0]}",
)
PASSWORD = "canary-passw0rd"
KEYS = 50 + 1 + 3
"""Of messages: the first rows, a changed key, and the new rows that the condition selects."""
TIMES = re.compile(rb'"ts_(ms|us|ns)":\d+')
Messages = dict[bytes | None, list[bytes | None]]


def by_key(broker: str, topic: str) -> Messages:
    """Return the messages of each key in order, without the times at which Debezium's records are written."""
    found: Messages = {}
    for each in committed(broker, topic):
        found.setdefault(each.key, []).append(None if each.value is None else TIMES.sub(b"", each.value))
    return found


def folded(messages: Messages) -> dict[int, dict[str, Any]]:
    """Return the rows of a topic of ENVELOPE UPSERT."""
    last = {key: values[-1] for key, values in messages.items()}
    rows = [json.loads(value) for value in last.values() if value is not None]
    return {row["id"]: row for row in rows}


def upstream(shop: Shop) -> dict[int, str]:
    return dict(shop.database.execute("SELECT id, status FROM orders"))


def statuses(broker: str, topic: str) -> dict[int, str]:
    return {key: row["status"] for key, row in folded(by_key(broker, topic)).items()}


@pytest.mark.parametrize(
    "forms",
    [
        pytest.param({"upsert": "json", "changes": "avro"}, id="some"),
        pytest.param({"debezium": "json"}, id="debezium", marks=pytest.mark.deep),
        pytest.param({"upsert": "avro"}, id="avro", marks=pytest.mark.deep),
    ],
)
def test_messages_are_those_of_exactly_once(
    start_spark_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
    forms: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same messages of each key, in one format for each envelope."""
    monkeypatch.setenv("REDACT_KEY_OF_THIS_TEST", "k3y")  # Spark's JVM and Python workers do not have it
    shop = start_spark_shop(SETUP)
    options: dict[str, Any] = {
        "broker": broker.bootstrap,
        "redact": {"card": "hash"},
        "redact_key": "env:REDACT_KEY_OF_THIS_TEST",
        "partitions": 2,
        "where": "status <> 'late' OR id > 2002",
    }
    topics = {}
    for envelope, form in forms.items():
        used = {"envelope": envelope, "format": form} | ({"schema_registry": registry.url} if form == "avro" else {})
        for delivery in ("exactly once", "at least once"):
            name = f"{envelope}_{'least' if 'least' in delivery else 'exact'}"
            topics[envelope, delivery] = topic = unique(name)
            shop.home.create_sink(name, "shop.orders", topic=topic, delivery=delivery, **options, **used)
            wait_sink(shop.catalog, name)
    for statement in CHANGES:
        shop.database.execute(statement)
    for envelope in forms:
        exact, least = topics[envelope, "exactly once"], topics[envelope, "at least once"]

        def is_same(exact: str = exact, least: str = least) -> bool:
            assert [sink.error for sink in shop.home.status().sinks] == [None] * len(topics)
            wanted = by_key(broker.bootstrap, exact)
            return len(wanted) == KEYS and by_key(broker.bootstrap, least) == wanted

        until(is_same, "the same messages")
    names = [file.name for file in calls_path(shop.home.path, f"{envelope}_least").iterdir()]
    assert sorted(names) == ["shop.json", "shop.lock"], "the key of hashes is removed"


@pytest.mark.deep
def test_interrupted_write_is_repeated(
    start_spark_shop: Callable[..., Shop], broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.sink_runner.LONGEST_TRANSIENT_PAUSE", 0.2)
    monkeypatch.setattr("penstock.sinks.kafka.spark_writer._GIVE_UP_SECONDS", 0)
    failing = Failing()
    monkeypatch.setattr(CallRecord, "write", lambda record, call: failing.write(record, call))
    shop, topic = start_spark_shop(SETUP), unique("interrupted")
    shop.home.create_sink(
        "out",
        "shop.orders",
        topic=topic,
        format="json",
        envelope="upsert",
        delivery="at least once",
        partitions=2,
        **login(broker, monkeypatch),
    )
    until(lambda: len(failing.ranges) == 2, "the rows, twice")
    shop.database.execute(CHANGES[0])
    until(lambda: len(failing.ranges) == 4, "the first change, twice")
    for statement in CHANGES[1:]:
        shop.database.execute(statement)
    until(lambda: statuses(broker.bootstrap, topic) == upstream(shop), "the table")
    assert failing.ranges[0] == failing.ranges[1]
    assert failing.ranges[2] == failing.ranges[3]
    found = by_key(broker.bootstrap, topic)
    assert [json.loads(value or b"")["status"] for value in found[b'{"id":20}']] == ["new", "new"]
    seen = [value and json.loads(value)["status"] for value in found[b'{"id":3}']]
    assert seen == ["new", "new", "paid", "paid", "again"]
    for statement in MANY:
        shop.database.execute(statement)
    until(lambda: statuses(broker.bootstrap, topic) == upstream(shop), "messages of several tasks")
    found = by_key(broker.bootstrap, topic)
    orders = {tuple(value and json.loads(value)["status"] for value in found[b'{"id":%d}' % n]) for n in NEW}
    assert orders == {("a", "b", "c")}
    settings = calls_path(shop.home.path, "out") / "shop.properties"
    assert (PASSWORD in settings.read_text(), settings.stat().st_mode & 0o777) == (True, 0o600)
    shown = until(lambda: [s for s in shop.home.status().sinks if s.behind == 0], "the report")[0]
    assert shown.error is None
    shop.home.drop_sink("out")
    until(lambda: shop.catalog.sinks.get("out") is None, "the drop")
    assert not calls_path(shop.home.path, "out").exists()


def login(broker: SharedBroker, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of a login with a password."""
    user = unique("writer")
    broker.add_user(user, PASSWORD)
    monkeypatch.setenv("SINK_PASSWORD", PASSWORD)
    return {
        "broker": f"127.0.0.1:{broker.doors.sasl_port}",
        "security_protocol": "SASL_SSL",
        "sasl_mechanisms": "SCRAM-SHA-256",
        "sasl_username": user,
        "sasl_password": "env:SINK_PASSWORD",
        "ssl_ca_location": str(broker.doors.tls / "ca.crt"),
    }


class Failing:
    """Fails the first time that a position is to be recorded after a write, of rows and of changes."""

    def __init__(self) -> None:
        self.ranges: list[tuple[Any, Any]] = []
        self._write = CallRecord.write

    def write(self, record: CallRecord, call: RecordedCall) -> None:
        before = record.last
        if before is not None and before.end is not None and call.end is None:
            self.ranges.append((before.position.position, before.end))
            if len(self.ranges) in (1, 3):
                raise ConnectionError("a crash, as far as the record is concerned")
        self._write(record, call)


def test_home_without_spark(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    shop = start_shop(SETUP)
    options = {"broker": broker.bootstrap, "topic": unique("none"), "format": "json", "envelope": "upsert"}
    shop.home.create_sink("out", "shop.orders", delivery="at least once", **options)
    error = until(lambda: shop.home.status().sinks[0].error, "the error")
    assert error == "sink out writes with Spark (delivery = 'at least once'), and this home runs without Spark"
