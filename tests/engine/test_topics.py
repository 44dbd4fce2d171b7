"""Sources that read topics, in a running home: envelopes live and as of the past, errors, quarantine, restarts."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.engine.test_source_kinds import running_home, state
from tests.engine.topic import Topic
from tests.formats.conftest import encoded as avro
from tests.formats.conftest import framed, record
from tests.servers import SharedBroker, SharedRegistry

from penstock.catalog.store import Catalog
from penstock.engine import table_loops
from penstock.errors import DefiniteError, HistoryExpiredError, TableError
from penstock.home import Home
from penstock.layout import base_path
from penstock.live import Live
from penstock.positions import Lsn
from penstock.sources.kafka import tick_instance
from penstock.sources.kafka.apply import messages
from penstock.sources.kafka.apply.tables import TopicApply, TopicTables
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.tables.base_state import State
from penstock.tables.live_table import live_table
from penstock.testing.waiting import PATIENCE, until

BOTH = "KEY FORMAT JSON VALUE FORMAT JSON"
QUICK = "timestamp frequency ms = 50"
IN_THREAD = pytest.mark.usefixtures("in_process")
"""Capture of the other tests is a process of its own."""


def create(home: Home, broker: SharedBroker, topic: Topic, rest: str, options: str = QUICK) -> None:
    broker_and_topic = f"KAFKA BROKER '{broker.bootstrap}' TOPIC '{topic.name}'"
    home.sql(f"CREATE SOURCE {topic.source} FROM {broker_and_topic} {rest} WITH ({options})")


def rows(live: Live, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in live.sql(query).collect()]


def wait_for_messages(home: Home, source: str, messages: int) -> Lsn:
    """Wait until a number of messages of a topic are in ticks; return the position."""
    log = Catalog(home.path / "penstock.db").log(source)
    assert isinstance(log, TopicLog)

    def reached() -> bool:
        with closing(log.reader()) as reader:
            frontiers = reader.frontiers()
        ranges = log.ranges(log.tables[0], frontiers.valid, frontiers.durable)
        return sum(part.last - part.first for part in ranges) >= messages

    until(reached, f"{messages} messages of {source}")
    return home.frontiers(source).durable


def options_of(home: Home, source: str) -> KafkaWithOptions:
    """The options with which a source is read."""
    log = Catalog(home.path / "penstock.db").log(source)
    assert isinstance(log, TopicLog)
    return log.how


def wait_until_applied(home: Home, table: str) -> None:
    """Wait until the base table has the messages of all ticks."""

    def is_applied() -> bool:
        (found,) = [t for s in home.status().sources for t in s.tables if t.name == table]
        return found.state == "live" and found.behind == 0

    until(is_applied, f"apply of {table}")


@pytest.mark.slow("the only test of an upsert topic in Spark over a restart")
@IN_THREAD
def test_upsert_topic_live_as_of_the_past_and_after_a_restart(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession
) -> None:
    topic = Topic(broker, "users", 2)
    topic.send([({"id": 1}, {"name": "a"}), ({"id": 2}, {"name": "b"})])
    topic.send([({"id": 3}, {"name": "c"})], 1)
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} INCLUDE PARTITION, OFFSET AS place ENVELOPE UPSERT")
    query = "SELECT id, name, partition, place FROM users.users ORDER BY id"
    with running_home(home, spark):
        first = wait_for_messages(home, "users", 3)
        assert rows(home.live(spark), query) == [(1, "a", 0, 0), (2, "b", 0, 1), (3, "c", 1, 0)]
        wait_until_applied(home, "users.users")
        between = datetime.now(UTC)
        until(lambda: home.frontiers("users").passed > between, "time to pass without a message")
        topic.send([({"id": 1}, {"name": "A"}), ({"id": 2}, None)])
        topic.send([({"id": 1}, {"name": "moved"})], 1)  # as after partitions have been added
        wait_for_messages(home, "users", 6)
        assert rows(home.live(spark), query) == [(1, "moved", 1, 1), (3, "c", 1, 0)]
        assert [r[:2] for r in rows(home.live(spark, between), query)] == [(1, "a"), (2, "b"), (3, "c")]
        wait_until_applied(home, "users.users")
        assert [r[:2] for r in rows(home.live(spark, {"users": first}), query)] == [(1, "a"), (2, "b"), (3, "c")]
        topic.send([({"id": 4}, {"name": "d"})])
        wait_for_messages(home, "users", 7)
        with closing(home.tail("users", start="earliest")) as tail:
            assert [str(name) for name in next(tail).tables] == [f"topic.{topic.name}"]
    topic.send([({"id": 5}, {"name": "e"})])
    with running_home(home, spark):
        wait_for_messages(home, "users", 8)
        expected = [(1, "moved"), (3, "c"), (4, "d"), (5, "e")]
        assert [r[:2] for r in rows(home.live(spark), query)] == expected
        wait_until_applied(home, "users.users")
        assert [r[:2] for r in rows(home.live(spark), query)] == expected
        (status,) = home.status().sources
        assert (status.kind, status.tables[0].state) == ("KAFKA", "live")
    home.sql("DROP SOURCE users")
    assert home.sources() == []


@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
@IN_THREAD
def test_as_of_a_position_that_kafka_no_longer_retains(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)
    topic = Topic(broker, f"aged{few}", 2)
    topic.send([({"id": n}, {"name": "x"}) for n in range(5)], 1)
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    with running_home(home, spark):
        upto = wait_for_messages(home, topic.source, 5)
        wait_until_applied(home, f"{topic.source}.{topic.source}")
        log = Catalog(home.path / "penstock.db").log(topic.source)
        assert isinstance(log, TopicLog)
        read = messages.messages_of(spark, log, log.tables[0], Lsn.ZERO, upto)
        assert read is not None
        assert (read.count(), read.isLocal()) == (5, few > 0)
        topic.remove_before(1, 3)
        with pytest.raises(
            HistoryExpiredError, match=r"partition 1 of topic aged[\w-]+ now starts at offset 3: .* from offset 0 on"
        ):
            messages.messages_of(spark, log, log.tables[0], Lsn.ZERO, upto)
        assert home.live(spark).table(f"{topic.source}.{topic.source}").count() == 5


@IN_THREAD
def test_append_only_topic(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker, "visits", 2)
    topic.send([(None, {"url": "/a", "tags": ["x"], "n": 1}), (None, {"url": "/b", "tags": [], "n": 2})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, "FORMAT JSON INCLUDE TIMESTAMP AS at")
    with running_home(home, spark):
        wait_for_messages(home, "visits", 2)
        wait_until_applied(home, "visits.visits")
        topic.send([(None, {"url": "/a", "tags": ["x"], "n": 1})] * 3, 1)
        wait_for_messages(home, "visits", 5)
        live = home.live(spark)
        query = "SELECT url, tags, count(*), sum(n) FROM visits.visits GROUP BY ALL ORDER BY 1"
        assert rows(live, query) == [("/a", ["x"], 4, 4), ("/b", [], 1, 2)]
        wait_until_applied(home, "visits.visits")
        assert rows(home.live(spark), query) == [("/a", ["x"], 4, 4), ("/b", [], 1, 2)]
        assert rows(live, "SELECT count(*) FROM visits.visits WHERE at IS NULL") == [(0,)]


@pytest.mark.deep
def test_offset_range_without_messages(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    """Messages of an aborted transaction occupy offsets; the table continues nevertheless."""
    topic = Topic(broker, "abandoned")
    topic.send([({"id": 1}, {"n": "x"})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    query = "SELECT * FROM abandoned.abandoned ORDER BY id"
    with running_home(home, spark):
        wait_for_messages(home, "abandoned", 1)
        wait_until_applied(home, "abandoned.abandoned")
        topic.send_aborted([({"id": 1}, {"n": "no"}), ({"id": 2}, {"n": "no"})])
        wait_for_messages(home, "abandoned", 4)
        assert rows(home.live(spark), query) == [(1, "x")]
        wait_until_applied(home, "abandoned.abandoned")
        topic.send([({"id": 3}, {"n": "y"})])
        wait_for_messages(home, "abandoned", 5)
        assert rows(home.live(spark), query) == [(1, "x"), (3, "y")]


@pytest.mark.parametrize("envelope", [pytest.param("NONE", marks=pytest.mark.deep), "UPSERT"])
@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
@IN_THREAD
def test_view_raises_the_error_of_an_invalid_message_before_apply(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: int, envelope: str
) -> None:
    """Apply has not reached the message: only the view can detect it."""
    topic = Topic(broker, f"broken_{envelope.lower()}_{few}")
    topic.send([({"id": 1}, {"n": 1})])
    home = Home(tmp_path / "home")
    formats = BOTH if envelope == "UPSERT" else "FORMAT JSON"
    create(home, broker, topic, f"{formats} ENVELOPE {envelope}")
    with running_home(home, spark):
        before = wait_for_messages(home, topic.source, 1)
        wait_until_applied(home, f"{topic.source}.{topic.source}")
        topic.send([({"id": 2}, {"n": 2}), ({"id": 3}, b"{"), ({"id": 4}, {"n": 4})])
        upto = wait_for_messages(home, topic.source, 4)
    catalog = Catalog(home.path / "penstock.db")
    base = catalog.bases.newest(topic.source, topic.source, before)
    assert base is not None
    at = State(base.version, base.position, base.schema)
    path = base_path(home.path, topic.source, topic.source).absolute()
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)

    def view() -> DataFrame:
        return live_table(spark, catalog.log(topic.source), path, at, base.schema, upto)

    if few:
        with pytest.raises(TableError, match=r"offset 2 of partition 0 of topic broken[\w-]+: its value") as caught:
            view()
        assert "SET (on error = 'quarantine')" in caught.value.hint
        return
    with pytest.raises((PySparkException, Py4JJavaError), match="offset 2 of partition 0"):
        view().count()
    with pytest.raises((PySparkException, Py4JJavaError), match="offset 2 of partition 0"):
        view().where("n = 4").collect()


@pytest.mark.deep
def test_invalid_message_stops_its_source_alone_and_quarantine_resumes_it(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession
) -> None:
    bad, good = Topic(broker, "bad"), Topic(broker, "good")
    bad.send([({"id": 1}, {"n": 1})])
    good.send([({"id": 1}, {"n": 1})])
    home = Home(tmp_path / "home")
    create(home, broker, bad, f"{BOTH} ENVELOPE UPSERT")
    create(home, broker, good, f"{BOTH} ENVELOPE UPSERT")
    with running_home(home, spark):
        before = wait_for_messages(home, "bad", 1)
        wait_until_applied(home, "bad.bad")
        bad.send([({"id": 2}, {"n": 2})])
        second = wait_for_messages(home, "bad", 2)
        bad.send([({"id": 3}, b"{secret"), (None, {"n": 4}), ({"id": 5}, {"n": 5})])
        wait_for_messages(home, "bad", 5)
        with pytest.raises(DefiniteError, match="offset 2 of partition 0"):
            home.live(spark).table("bad.bad")
        until(lambda: state(home, "bad.bad") == "failed", "the table to fail")
        with pytest.raises(DefiniteError, match=f"offset 2 of partition 0 of topic {bad.name}: its value") as caught:
            home.live(spark).table("bad.bad")
        assert "secret" not in str(caught.value)
        assert "SET (on error = 'quarantine')" in caught.value.hint
        query = "SELECT id, n FROM bad.bad ORDER BY id"
        assert rows(home.live(spark, {"bad": before}), query) == [(1, 1)]
        assert rows(home.live(spark, {"bad": second}), query) == [(1, 1), (2, 2)]
        good.send([({"id": 2}, {"n": 2})])
        wait_for_messages(home, "good", 2)
        assert rows(home.live(spark), "SELECT count(*) FROM good.good") == [(2,)]

        home.sql("ALTER SOURCES bad SET (on error = 'quarantine')")
        until(lambda: state(home, "bad.bad") == "live", "the table to resume")
        assert rows(home.live(spark), query) == [(1, 1), (2, 2), (5, 5)]
        quarantined = "SELECT topic, partition, offset, key, value, reason FROM bad.bad_quarantine ORDER BY offset"
        first, null = rows(home.live(spark), quarantined)
        assert (*first[:3], bytes(first[3]), bytes(first[4])) == (bad.name, 0, 2, b'{"id": 3}', b"{secret")
        assert (*null[:4], bytes(null[4])) == (bad.name, 0, 3, None, b'{"n": 4}')
        assert "key is null" in null[5]

        home.sql("ALTER SOURCES bad SET (quarantine limit = 3)")
        until(lambda: options_of(home, "bad").quarantine_limit == 3, "the new limit")
        bad.send([(None, {"n": 6}), (None, {"n": 7})])
        until(lambda: state(home, "bad.bad") == "failed", "the error about the quarantine limit")
        with pytest.raises(DefiniteError, match="offset 5 of partition 0") as caught:
            home.live(spark).table("bad.bad")
        assert "bad.bad_quarantine" in caught.value.hint
        home.sql("ALTER SOURCES bad SET (quarantine limit = 9)")
        until(lambda: state(home, "bad.bad") == "live", "the table to resume with a higher limit")
        assert rows(home.live(spark), "SELECT count(*) FROM bad.bad_quarantine") == [(4,)]


@pytest.mark.slow("waits for an apply that is paused on purpose")
@IN_THREAD
def test_status_and_quarantine_show_errors_before_apply(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply is paused or busy meanwhile."""
    topic = Topic(broker, "ahead")
    topic.send([({"id": 1}, {"n": 1}), ({"id": 2}, {"n": 2})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    name = f"{topic.source}.{topic.source}"
    quarantined = f"SELECT offset, reason, quarantined_at IS NULL FROM {name}_quarantine ORDER BY offset"
    with monkeypatch.context() as patch, running_home(home, spark):
        wait_for_messages(home, topic.source, 2)
        wait_until_applied(home, name)
        resting = threading.Event()

        def rest(*_: float) -> float:
            resting.set()
            return PATIENCE

        patch.setattr(table_loops, "pause_after", rest)
        until(resting.is_set, "the pause of apply")
        topic.send([({"id": 3}, b"{secret"), (None, {"n": 4}), ({"id": 5}, {"n": 5})])
        wait_for_messages(home, topic.source, 5)
        assert state(home, name) == "live"
        with pytest.raises(TableError) as caught:
            home.live(spark).table(name)
        assert state(home, name) == "failed"
        assert caught.value.message in str(home.sql("SHOW ERRORS"))
        assert caught.value.hint in str(home.sql("SHOW ERRORS"))
        home.sql(f"ALTER SOURCES {topic.source} SET (on error = 'quarantine', quarantine limit = 1)")
        until(lambda: options_of(home, topic.source).quarantine_limit == 1, "the new options")
        with pytest.raises(TableError, match="offset 2 of partition 0") as caught:
            home.live(spark).table(name)
        assert "SET (quarantine limit" in caught.value.hint
        assert state(home, name) == "failed"
        home.sql(f"ALTER SOURCES {topic.source} SET (quarantine limit = 2)")
        until(lambda: options_of(home, topic.source).quarantine_limit == 2, "the new limit")
        assert rows(home.live(spark), f"SELECT id FROM {name} ORDER BY id") == [(1,), (2,), (5,)]
        assert state(home, name) == "live"
        before_apply = rows(home.live(spark), quarantined)
        assert [(row[0], row[2]) for row in before_apply] == [(2, True), (3, True)]
    with running_home(home, spark):
        until(
            lambda: not any(row[2] for row in rows(home.live(spark), quarantined)),
            "the messages to be quarantined by apply",
        )
        wait_until_applied(home, name)
        stored = rows(home.live(spark), quarantined)
        assert [row[:2] for row in stored] == [row[:2] for row in before_apply]


@pytest.mark.deep
def test_topic_is_read_again_after_retry(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker, "again")
    topic.send([({"id": 1}, {"n": "w"}), ({"id": 2}, {"n": "x"})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT", f"{QUICK}, start offset = (1)")
    with running_home(home, spark):
        wait_for_messages(home, "again", 1)
        assert rows(home.live(spark), "SELECT * FROM again.again") == [(2, "x")]
        wait_until_applied(home, "again.again")
        home.retry("again", "again")
        until(lambda: state(home, "again.again") == "live", "the table to be live")
        topic.send([({"id": 3}, {"n": "y"})])
        until(
            lambda: (
                state(home, "again.again") == "live"
                and rows(home.live(spark, wait=PATIENCE), "SELECT * FROM again.again ORDER BY id")
                == [(2, "x"), (3, "y")]
            ),
            "all rows",
        )


@pytest.mark.deep
def test_recreated_topic_is_read_again_by_the_statement_in_the_hint(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession
) -> None:
    topic = Topic(broker, "lost")
    topic.send([({"id": 1}, {"n": "w"}), ({"id": 2}, {"n": "x"})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    with running_home(home, spark):
        wait_for_messages(home, "lost", 2)
        wait_until_applied(home, "lost.lost")
        topic.recreate()
        topic.send([({"id": 3}, {"n": "y"})])
        until(lambda: state(home, "lost.lost") == "failed", "the error about the recreated topic")
        (table,) = [t for s in home.status().sources for t in s.tables]
        (statement,) = re.findall(r"ALTER SOURCES [^;]*;", table.hint or "")
        home.sql(statement)
        until(
            lambda: (
                state(home, "lost.lost") == "live"
                and rows(home.live(spark, wait=PATIENCE), "SELECT * FROM lost.lost") == [(3, "y")]
            ),
            "the rows of the new topic",
        )


@pytest.mark.parametrize(
    "few",
    [
        pytest.param(messages._FEW_MESSAGES, marks=pytest.mark.slow("the table is created and applied in two runs")),
        pytest.param(0, marks=pytest.mark.deep),
    ],
    ids=["few", "many"],
)
@IN_THREAD
def test_messages_of_a_recreated_topic_are_not_applied(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Messages are captured, but not applied yet; then another topic of the same name has others at their offsets."""
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)
    topic = Topic(broker, "renewed")
    home = Home(tmp_path / "home")
    create(home, broker, topic, "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (n int) ENVELOPE UPSERT")
    with monkeypatch.context() as patch:
        patch.setattr(TopicTables, "apply", lambda *_: None)
        with running_home(home, spark):
            topic.send([({"id": n}, {"n": 1}) for n in range(4)])
            wait_for_messages(home, "renewed", 4)
    topic.recreate()
    topic.send([({"id": n}, {"n": 2}) for n in range(4)])
    monkeypatch.setattr(tick_instance, "continued", lambda _, __, taken, ___: taken)  # capture sees it later than apply
    with home.run(spark):
        until(lambda: state(home, "renewed.renewed") == "failed", "the error of the table")
        (table,) = [table for source in home.status().sources for table in source.tables]
        assert "are not those that were captured" in (table.error or "")
        assert "RETRY TABLE" in (table.hint or "")
        assert spark.read.format("delta").load(str(base_path(home.path, "renewed", "renewed"))).isEmpty()


def test_create_source_statement_of_the_readme(
    broker: SharedBroker, registry: SharedRegistry, tmp_path: Path, spark: SparkSession
) -> None:
    """Avro keys and values with a schema registry; later messages have a newer schema than the source."""
    statements = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (statement,) = re.findall(r"CREATE SOURCE clicks .*?;", statements, re.DOTALL)
    key, value = record(("id", "long")), record(("url", "string"), ("at", ["null", "long"]))
    newer = record(*value["fields"], {"name": "more", "type": "string", "default": ""})
    topic = Topic(broker, "clicks")

    def message(number: int, of: Any, row: dict[str, Any] | None) -> tuple[bytes, bytes | None]:
        schemas = {"key": key, "value": of}
        ids = [registry.register(f"{topic.name}-{part}", json.dumps(schema)) for part, schema in schemas.items()]
        body = None if row is None else framed(ids[1], avro(of, row))
        return framed(ids[0], avro(key, {"id": number})), body

    topic.send([message(n, value, {"url": f"/{n}", "at": n or None}) for n in range(3)])
    home = Home(tmp_path / "home")
    replacements = {"k1:9092": broker.bootstrap, "'clicks'": f"'{topic.name}'", "http://registry:8081": registry.url}
    for example, real in replacements.items():
        statement = statement.replace(example, real)
    home.sql(statement)
    with running_home(home, spark):
        wait_for_messages(home, "clicks", 3)
        query = "SELECT id, url, at FROM clicks.clicks ORDER BY id"
        assert rows(home.live(spark), query) == [(0, "/0", None), (1, "/1", 1), (2, "/2", 2)]
        topic.send([message(1, newer, {"url": "/new", "at": 9, "more": "!"}), message(0, newer, None)])
        wait_for_messages(home, "clicks", 5)
        assert rows(home.live(spark), query) == [(1, "/new", 9), (2, "/2", 2)]
        wait_until_applied(home, "clicks.clicks")
        assert rows(home.live(spark), query) == [(1, "/new", 9), (2, "/2", 2)]


def debezium_record(op: str, at: int, before: Any, after: Any) -> tuple[Any, Any]:
    """A Debezium record of a Postgres connector, in JSON."""
    place = {"lsn": at, "sequence": f'["{at}","{at}"]', "ts_ms": 1_700_000_000_000 + at, "snapshot": "false"}
    source = {"connector": "postgresql", "version": "3.2.0.Final", **place}
    return {"id": (after or before)["id"]}, {"op": op, "before": before, "after": after, "source": source}


@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
@IN_THREAD
def test_view_rejects_a_change_that_does_not_match_the_rows(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view raises the same error as apply, before apply reaches the message."""
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)
    topic, home = Topic(broker, "changes"), Home(tmp_path / "home")
    row, other = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
    topic.send([debezium_record("c", 1, None, row), debezium_record("u", 2, row, other)])
    create(home, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM")
    with running_home(home, spark):
        wait_until_applied(home, "changes.changes")
        query = "SELECT id, v FROM changes.changes"
        assert rows(home.live(spark), query) == [(1, "b")]
        merge = TopicApply.merge
        monkeypatch.setattr(TopicApply, "merge", lambda *_: None)
        topic.send([debezium_record("u", 3, row, {"id": 1, "v": "c"})])  # the current value is b
        wait_for_messages(home, "changes", 3)
        with pytest.raises(TableError, match="removes a row that differs from the current row") as caught:
            rows(home.live(spark), query)
        monkeypatch.setattr(TopicApply, "merge", merge)
        topic.send([debezium_record("c", 4, None, {"id": 2, "v": "d"})])  # gives apply new work
        until(lambda: state(home, "changes.changes") == "failed", "apply to fail")
        (table,) = [t for s in home.status().sources for t in s.tables]
        assert (table.error, table.hint) == (caught.value.message, caught.value.hint)
