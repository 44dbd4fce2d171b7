"""Changes of topics, without Spark: tail of each envelope, replays, rejected messages, offsets without messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engine.sink_topics import committed
from tests.engine.topic import Topic
from tests.servers import SharedBroker, unique

from penstock.catalog.states import SinkState
from penstock.catalog.store import Catalog
from penstock.changelog.interface import ChangeLog
from penstock.changelog.transactions import Transaction
from penstock.engine.sink_runner import SinkRunners
from penstock.engine.transaction_tail import transaction_json
from penstock.errors import DefiniteError, HistoryExpiredError, TableError, UsageError
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.positions import Lsn
from penstock.sources.kafka import ticks, topic_images
from penstock.sources.kafka.topic_log import TopicLog
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

BOTH = "KEY FORMAT JSON VALUE FORMAT JSON"
COLUMNS = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (name string)"
pytestmark = pytest.mark.usefixtures("in_process")


@contextmanager
def captured(folder: Path, broker: SharedBroker, topic: Topic, rest: str, options: str = "") -> Iterator[Home]:
    """A home that captures a topic; its tables are not applied, because it has no Spark."""
    home = Home(folder / "home")
    place = f"KAFKA BROKER '{broker.bootstrap}' TOPIC '{topic.name}'"
    home.sql(f"CREATE SOURCE {topic.source} FROM {place} {rest} WITH (timestamp frequency ms = 50{options})")
    with home.run(MemoryTables(), list[str]().append):
        yield home


def log_of(home: Home, source: str) -> ChangeLog:
    return Catalog(catalog_path(home.path)).log(source)


def wait_messages(home: Home, topic: Topic, count: int) -> Lsn:
    """Wait until ticks have this many offsets of a topic; return the position."""
    log = log_of(home, topic.source)

    def reached() -> bool:
        with closing(log.reader()) as reader:
            return sum(reader.changes().values()) // 2 >= count  # a table, and that of its ticks

    until(reached, f"{count} messages of {topic.source}")
    return home.frontiers(topic.source).durable


def changes(transactions: Iterator[Transaction], count: int) -> list[tuple[Any, ...]]:
    """Return the first changes of a tail: table, op, before, after."""
    found: list[tuple[Any, ...]] = []
    for transaction in transactions:
        for table in transaction.tables.values():
            found += [(row["_op"], row["before"], row["after"]) for row in table.to_pylist()]
        if len(found) >= count:
            return found
    return found


def test_tail_of_an_upsert_topic(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "users", 2)
    topic.send([({"id": 1}, {"name": "a"}), ({"id": 2}, {"name": "b"})])
    with captured(tmp_path, broker, topic, f"{BOTH} INCLUDE PARTITION, OFFSET AS place ENVELOPE UPSERT") as home:
        wait_messages(home, topic, 2)
        with closing(home.tail("users", start="earliest")) as tail:
            one = {"id": 1, "name": "a", "partition": 0, "place": 0}
            two = {"id": 2, "name": "b", "partition": 0, "place": 1}
            first = changes(tail, 2)
            assert first == [("update", None, one), ("update", None, two)]
            topic.send([({"id": 3}, {"name": "c"})], 1)
            topic.send([({"id": 2}, None)])
            later = changes(tail, 2)
        gone = {"id": 2, "name": None, "partition": None, "place": None}
        three = {"id": 3, "name": "c", "partition": 1, "place": 0}
        assert sorted(later, key=str) == sorted([("delete", gone, None), ("update", None, three)], key=str)
        with closing(home.tail("users", ["users"], start="earliest")) as again:
            assert changes(again, 4) == [*first, *later]
        with closing(home.tail("users", start="earliest")) as again:
            printed = json.loads(transaction_json("users", next(again)))
            assert [each["after"]["name"] for each in printed["tables"][f"topic.{topic.name}"]] == ["a", "b"]


def test_tail_of_rows_that_are_only_added(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "events")
    topic.send([(None, {"n": 1})])
    topic.send_aborted([(None, {"n": 2})])
    topic.send([(None, {"n": 3})])
    topic.send_aborted([(None, {"n": 4})])
    with captured(tmp_path, broker, topic, "FORMAT JSON ENVELOPE NONE") as home:
        wait_messages(home, topic, 6)  # with the markers of transactions
        with closing(home.tail("events", start="earliest")) as tail:
            assert changes(tail, 2) == [("insert", None, {"n": 1}), ("insert", None, {"n": 3})]


def test_capture_that_is_started_again_continues_where_it_was(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "events")
    topic.send([(None, {"n": 1}), (None, {"n": 2})])
    with captured(tmp_path, broker, topic, "FORMAT JSON ENVELOPE NONE") as home:
        wait_messages(home, topic, 2)
        home.sql("ALTER SOURCES events SET (on error = 'quarantine')")  # restarts it, too
        topic.send([(None, {"n": 3})])
        wait_messages(home, topic, 3)
    with home.run(MemoryTables(), list[str]().append):
        topic.send([(None, {"n": 4})])
        wait_messages(home, topic, 4)
        with closing(home.tail("events", start="earliest")) as tail:
            assert changes(tail, 4) == [("insert", None, {"n": number}) for number in (1, 2, 3, 4)]
    log = log_of(home, "events")
    assert isinstance(log, TopicLog)
    found = log.bounds(log.tables[0], Lsn.ZERO, home.frontiers("events").durable).to_pylist()
    assert [tick["first"] for tick in found] == [0, *(tick["last"] for tick in found[:-1])], (
        "no message is in two ticks"
    )


def record(op: str, id_: int, name: str | None) -> tuple[Any, Any]:
    return {"id": id_}, {"op": op, "before": None, "after": None if name is None else {"id": id_, "name": name}}


def test_tail_of_debezium_records(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "orders")
    topic.send([record("r", 1, "a"), record("u", 1, "b"), record("d", 1, None), ({"id": 1}, None)])
    with captured(tmp_path, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM UPSERT") as home:
        wait_messages(home, topic, 4)
        gone = ("delete", {"id": 1, "name": None}, None)
        with closing(home.tail("orders", start="earliest")) as tail:
            assert changes(tail, 4) == [
                ("update", None, {"id": 1, "name": "a"}),
                ("update", None, {"id": 1, "name": "b"}),
                gone,
                gone,  # Debezium's tombstone
            ]


def test_tail_of_a_truncate(tmp_path: Path, broker: SharedBroker) -> None:
    """It has a place among all records only while the topic has one partition."""
    topic = Topic(broker, "emptied")
    truncate = None, {"op": "t", "before": None, "after": None}
    topic.send([record("c", 1, "a"), truncate, record("c", 2, "b")])
    with captured(tmp_path, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM UPSERT") as home:
        wait_messages(home, topic, 3)
        topic.add_partitions(2)
        topic.send([record("c", 3, "c")], 1)
        upto = wait_messages(home, topic, 4)
        expected = [
            ("update", None, {"id": 1, "name": "a"}),
            ("truncate", None, None),
            ("update", None, {"id": 2, "name": "b"}),
            ("update", None, {"id": 3, "name": "c"}),
        ]
        with closing(home.tail("emptied", start="earliest")) as tail:
            assert changes(tail, 4) == expected
            topic.send([truncate])
            assert wait_messages(home, topic, 5) == upto + 1
            with pytest.raises(TableError, match="TRUNCATE in a topic with several partitions") as raised:
                next(tail)
        assert raised.value.lsn == upto + 1


def test_envelope_with_state_has_no_changes_to_read(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "stateful")
    key, value = record("c", 1, "a")
    topic.send([(key, {**value, "before": value["after"], "source": {"connector": "postgresql"}})])
    with (
        captured(tmp_path, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM") as home,
        pytest.raises(UsageError, match="ENVELOPE DEBEZIUM compares") as raised,
    ):
        next(home.tail("stateful", start="earliest"))
    assert "ENVELOPE DEBEZIUM UPSERT" in raised.value.hint


@pytest.mark.parametrize("quarantine", [False, True])
def test_rejected_message(tmp_path: Path, broker: SharedBroker, quarantine: bool) -> None:
    topic = Topic(broker, f"rejected{int(quarantine)}")
    topic.send([({"id": 1}, {"name": "a"})])
    option = ", on error = 'quarantine'" if quarantine else ""
    with captured(tmp_path, broker, topic, f"{COLUMNS} ENVELOPE UPSERT", option) as home:
        before = wait_messages(home, topic, 1)
        topic.send([({"id": 2}, {"name": "b"}), ({"id": 3}, b"{"), ({"id": 4}, {"name": "d"})])
        wait_messages(home, topic, 4)
        with closing(home.tail(topic.source, start="earliest")) as tail:
            assert [after["id"] for _, _, after in changes(tail, 1)] == [1]
            if quarantine:
                assert [after["id"] for _, _, after in changes(tail, 2)] == [2, 4]
                return
            with pytest.raises(TableError, match="offset 2 of partition 0") as raised:
                next(tail)
        assert raised.value.lsn == before + 1, "the tick has no change without its rejected message"
        assert "on error = 'quarantine'" in raised.value.hint


def test_rejected_message_of_one_of_several_topics(tmp_path: Path, broker: SharedBroker) -> None:
    good, bad, home = Topic(broker, "good"), Topic(broker, "bad"), Home(tmp_path / "home")
    place = f"KAFKA BROKER '{broker.bootstrap}' TOPICS ('{good.name}', '{bad.name}')"
    home.sql(f"CREATE SOURCE both FROM {place} {COLUMNS} ENVELOPE UPSERT WITH (timestamp frequency ms = 50)")
    failed: list[TableError] = []
    running = home.run(MemoryTables(), list[str]().append)
    with running, closing(home.tail("both", start="earliest", failed=failed.append)) as tail:
        bad.send([({"id": 2}, b"{")])
        good.send([({"id": 3}, {"name": "c"})])
        assert [after["id"] for _, _, after in changes(tail, 1)] == [3]
        good.send([({"id": 4}, {"name": "d"})])
        assert [after["id"] for _, _, after in changes(tail, 1)] == [4]
    assert [error.table for error in failed] == [f"topic.{bad.name}"]


def test_sink_ends_before_a_rejected_message(
    tmp_path: Path, broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, into, home = Topic(broker, "copied"), unique("copy"), Home(tmp_path / "home")
    place = f"KAFKA BROKER '{broker.bootstrap}' TOPIC '{topic.name}'"
    home.sql(f"CREATE SOURCE copied FROM {place} {COLUMNS} ENVELOPE UPSERT WITH (timestamp frequency ms = 50)")
    options: dict[str, Any] = {"format": "json", "envelope": "upsert", "partitions": 1, "snapshot": False}
    home.create_sink("copy", "copied.copied", broker=broker.bootstrap, topic=into, **options)
    with monkeypatch.context() as patch:
        patch.setattr(SinkRunners, "reconcile", lambda *_: None)  # so that one window has all messages
        with home.run(MemoryTables(), list[str]().append):
            for count, message in enumerate([(1, {"name": "a"}), (2, None), (3, b"{"), (4, {"name": "d"})], 1):
                topic.send([({"id": message[0]}, message[1])])
                wait_messages(home, topic, count)
    sinks = Catalog(catalog_path(home.path)).sinks
    with home.run(MemoryTables(), list[str]().append):
        until(lambda: (found := sinks.get("copy")) is not None and found.state is SinkState.FAILED, "the error")
    found = sinks.get("copy")
    assert found is not None
    assert "offset 2 of partition 0" in str(found.error)
    written = [(json.loads(each.key or b""), each.value) for each in committed(broker.bootstrap, into)]
    assert [(key, value and json.loads(value)) for key, value in written] == [
        ({"id": 1}, {"id": 1, "name": "a"}),
        ({"id": 2}, None),
    ]


def test_expired_messages(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "aged")
    topic.send([({"id": n}, {"name": "x"}) for n in range(4)])
    with captured(tmp_path, broker, topic, f"{BOTH} ENVELOPE UPSERT") as home:
        wait_messages(home, topic, 4)
        topic.remove_before(0, 2)
        with pytest.raises(HistoryExpiredError, match="from offset 0 on"):
            next(home.tail("aged", start="earliest"))


def test_recreated_topic(tmp_path: Path, broker: SharedBroker) -> None:
    """Messages of another topic of the same name, at the same offsets, are not the changes that were captured."""
    topic = Topic(broker, "renewed")
    topic.send([({"id": n}, {"name": "old"}) for n in range(4)])
    with captured(tmp_path, broker, topic, f"{COLUMNS} ENVELOPE UPSERT") as home:
        wait_messages(home, topic, 4)
    assert [after["name"] for _, _, after in changes(home.tail("renewed", start="earliest"), 4)] == ["old"] * 4
    topic.recreate()
    topic.send([({"id": n}, {"name": "new"}) for n in range(4)])
    with pytest.raises(DefiniteError, match="deleted and recreated"):
        next(home.tail("renewed", start="earliest"))


def test_any_range_in_any_division(tmp_path: Path, broker: SharedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ticks, topic_images):
        monkeypatch.setattr(module, "GROUP_MESSAGES", 3)
    topic = Topic(broker, "parts", 2)
    with captured(tmp_path, broker, topic, f"{COLUMNS} ENVELOPE UPSERT") as home:
        sent = 0
        for size in (2, 1, 7):
            for partition in (0, 1):
                topic.send([({"id": sent + n}, {"name": "x"}) for n in range(size)], partition)
                sent += size
            durable = wait_messages(home, topic, sent)
        log = log_of(home, "parts")
        with closing(log.reader()) as reader:
            (name,) = reader.tables()
            whole = reader.extent(name, Lsn(0), durable)
            expected = [image for batch in reader.read(whole) for image in batch.to_pylist()]
            assert whole.rows == sent == reader.images_within(name, Lsn(0), durable)
            assert sorted(image["row"]["id"] for image in expected) == list(range(sent))
            places = [(image["_lsn"], image["_ordinal"]) for image in expected]
            assert places == sorted(places)
            parts = [part for each in whole.divided(1) for part in reader.read(each)]
            assert [image for batch in parts for image in batch.to_pylist()] == expected
            for after, upto in itertools.combinations(range(durable + 1), 2):
                extent = reader.extent(name, Lsn(after), Lsn(upto))
                found = [image for batch in reader.read(extent) for image in batch.to_pylist()]
                assert found == [image for image in expected if after < image["_lsn"] <= upto]
