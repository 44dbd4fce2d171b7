"""Sources that read topics, in a home at work: each envelope live and in the past, errors, quarantine, restarts."""

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
from tests.engine.broker import Topic
from tests.engine.test_other_kinds import running, state
from tests.formats.conftest import encoded as avro
from tests.formats.conftest import framed, record
from tests.servers import SharedBroker, SharedRegistry

from penstock.catalog.store import Catalog
from penstock.engine import table_loops
from penstock.engine.topic_apply import TopicApply
from penstock.errors import DefiniteError, HistoryExpiredError, TableError, UsageError
from penstock.home import Home
from penstock.layout import base_path
from penstock.live import Live
from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.spark.topics import messages
from penstock.tables.base_state import State
from penstock.tables.live import live_table
from penstock.testing.waiting import PATIENCE, until

BOTH = "KEY FORMAT JSON VALUE FORMAT JSON"
QUICK = "timestamp frequency ms = 50"


def create(home: Home, broker: SharedBroker, topic: Topic, rest: str, options: str = QUICK) -> None:
    what = f"KAFKA BROKER '{broker.bootstrap}' TOPIC '{topic.name}'"
    home.sql(f"CREATE SOURCE {topic.source} FROM {what} {rest} WITH ({options})")


def rows(live: Live, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in live.sql(query).collect()]


def taken(home: Home, source: str, messages: int) -> Lsn:
    """Wait until so many messages of a topic are in ticks; return the position."""
    log = Catalog(home.path / "penstock.db").log(source)
    assert isinstance(log, TopicLog)

    def reached() -> bool:
        with closing(log.reader()) as reader:
            frontiers = reader.frontiers()
        ranges = log.ranges(log.tables[0], frontiers.valid, frontiers.durable)
        return sum(part.last - part.first for part in ranges) >= messages

    until(reached, f"{messages} messages of {source}")
    return home.frontiers(source).durable


def options(home: Home, source: str) -> KafkaWithOptions:
    """What a source is read with by now."""
    log = Catalog(home.path / "penstock.db").log(source)
    assert isinstance(log, TopicLog)
    return log.how


def applied(home: Home, table: str) -> None:
    """Wait until the base table has all that is in ticks."""

    def whole() -> bool:
        (found,) = [t for s in home.status().sources for t in s.tables if t.name == table]
        return found.state == "live" and found.behind == 0

    until(whole, f"{table} is applied")


def test_upsert_live_in_the_past_and_after_a_restart(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker, "users", 2)
    topic.send([({"id": 1}, {"name": "a"}), ({"id": 2}, {"name": "b"})])
    topic.send([({"id": 3}, {"name": "c"})], 1)
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} INCLUDE PARTITION, OFFSET AS place ENVELOPE UPSERT")
    query = "SELECT id, name, partition, place FROM users.users ORDER BY id"
    with running(home, spark):
        first = taken(home, "users", 3)
        assert rows(home.live(spark), query) == [(1, "a", 0, 0), (2, "b", 0, 1), (3, "c", 1, 0)]
        applied(home, "users.users")
        between = datetime.now(UTC)
        until(lambda: home.frontiers("users").passed > between, "a moment without a message")
        topic.send([({"id": 1}, {"name": "A"}), ({"id": 2}, None)])
        topic.send([({"id": 1}, {"name": "moved"})], 1)  # as after partitions were added
        taken(home, "users", 6)
        assert rows(home.live(spark), query) == [(1, "moved", 1, 1), (3, "c", 1, 0)]
        assert [r[:2] for r in rows(home.live(spark, between), query)] == [(1, "a"), (2, "b"), (3, "c")]
        applied(home, "users.users")
        assert [r[:2] for r in rows(home.live(spark, {"users": first}), query)] == [(1, "a"), (2, "b"), (3, "c")]
        topic.send([({"id": 4}, {"name": "d"})])
        taken(home, "users", 7)
        with pytest.raises(UsageError, match="messages in Kafka"):
            next(home.tail("users", start="earliest"))
    topic.send([({"id": 5}, {"name": "e"})])
    with running(home, spark):
        taken(home, "users", 8)
        expected = [(1, "moved"), (3, "c"), (4, "d"), (5, "e")]
        assert [r[:2] for r in rows(home.live(spark), query)] == expected
        applied(home, "users.users")
        assert [r[:2] for r in rows(home.live(spark), query)] == expected
        (status,) = home.status().sources
        assert (status.kind, status.tables[0].state) == ("KAFKA", "live")
    home.sql("DROP SOURCE users")
    assert home.sources() == []


@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
def test_a_past_that_kafka_no_longer_has(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)
    topic = Topic(broker, f"aged{few}", 2)
    topic.send([({"id": n}, {"name": "x"}) for n in range(5)], 1)
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    with running(home, spark):
        upto = taken(home, topic.source, 5)
        applied(home, f"{topic.source}.{topic.source}")
        log = Catalog(home.path / "penstock.db").log(topic.source)
        assert isinstance(log, TopicLog)
        read = messages.messages_of(spark, log, log.tables[0], Lsn.ZERO, upto)
        assert read is not None
        assert (read.count(), read.isLocal()) == (5, few > 0)
        topic.remove_before(1, 3)
        with pytest.raises(
            HistoryExpiredError, match=r"partition 1 of the topic aged[\w-]+ begins at 3 by now: .* from 0 on"
        ):
            messages.messages_of(spark, log, log.tables[0], Lsn.ZERO, upto)
        assert home.live(spark).table(f"{topic.source}.{topic.source}").count() == 5


def test_a_topic_of_rows(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker, "visits", 2)
    topic.send([(None, {"url": "/a", "tags": ["x"], "n": 1}), (None, {"url": "/b", "tags": [], "n": 2})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, "FORMAT JSON INCLUDE TIMESTAMP AS at")
    with running(home, spark):
        taken(home, "visits", 2)
        applied(home, "visits.visits")
        topic.send([(None, {"url": "/a", "tags": ["x"], "n": 1})] * 3, 1)
        taken(home, "visits", 5)
        live = home.live(spark)
        query = "SELECT url, tags, count(*), sum(n) FROM visits.visits GROUP BY ALL ORDER BY 1"
        assert rows(live, query) == [("/a", ["x"], 4, 4), ("/b", [], 1, 2)]
        applied(home, "visits.visits")
        assert rows(home.live(spark), query) == [("/a", ["x"], 4, 4), ("/b", [], 1, 2)]
        assert rows(live, "SELECT count(*) FROM visits.visits WHERE at IS NULL") == [(0,)]


@pytest.mark.deep
def test_a_range_of_offsets_without_messages(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    """Messages of a transaction that was given up take offsets; the table goes on all the same."""
    topic = Topic(broker, "abandoned")
    topic.send([({"id": 1}, {"n": "x"})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    query = "SELECT * FROM abandoned.abandoned ORDER BY id"
    with running(home, spark):
        taken(home, "abandoned", 1)
        applied(home, "abandoned.abandoned")
        topic.send_aborted([({"id": 1}, {"n": "no"}), ({"id": 2}, {"n": "no"})])
        taken(home, "abandoned", 4)
        assert rows(home.live(spark), query) == [(1, "x")]
        applied(home, "abandoned.abandoned")
        topic.send([({"id": 3}, {"n": "y"})])
        taken(home, "abandoned", 5)
        assert rows(home.live(spark), query) == [(1, "x"), (3, "y")]


@pytest.mark.parametrize("envelope", ["NONE", "UPSERT"])
@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
def test_no_query_passes_by_a_message_that_cannot_be_taken_in(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: int, envelope: str
) -> None:
    """Apply has not come to it yet: a view is all that stands between it and whoever asks."""
    topic = Topic(broker, f"broken_{envelope.lower()}_{few}")
    topic.send([({"id": 1}, {"n": 1})])
    home = Home(tmp_path / "home")
    formats = BOTH if envelope == "UPSERT" else "FORMAT JSON"
    create(home, broker, topic, f"{formats} ENVELOPE {envelope}")
    with running(home, spark):
        before = taken(home, topic.source, 1)
        applied(home, f"{topic.source}.{topic.source}")
        topic.send([({"id": 2}, {"n": 2}), ({"id": 3}, b"{"), ({"id": 4}, {"n": 4})])
        upto = taken(home, topic.source, 4)
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
def test_a_message_that_cannot_be_taken_in_stops_its_source_alone_and_it_goes_on_when_told(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession
) -> None:
    bad, good = Topic(broker, "bad"), Topic(broker, "good")
    bad.send([({"id": 1}, {"n": 1})])
    good.send([({"id": 1}, {"n": 1})])
    home = Home(tmp_path / "home")
    create(home, broker, bad, f"{BOTH} ENVELOPE UPSERT")
    create(home, broker, good, f"{BOTH} ENVELOPE UPSERT")
    with running(home, spark):
        before = taken(home, "bad", 1)
        applied(home, "bad.bad")
        bad.send([({"id": 2}, {"n": 2})])
        second = taken(home, "bad", 2)
        bad.send([({"id": 3}, b"{secret"), (None, {"n": 4}), ({"id": 5}, {"n": 5})])
        taken(home, "bad", 5)
        with pytest.raises(DefiniteError, match="offset 2 of partition 0"):
            home.live(spark).table("bad.bad")
        until(lambda: state(home, "bad.bad") == "failed", "the table stops")
        with pytest.raises(DefiniteError, match=f"offset 2 of partition 0 of topic {bad.name}: its value") as caught:
            home.live(spark).table("bad.bad")
        assert "secret" not in str(caught.value)
        assert "SET (on error = 'quarantine')" in caught.value.hint
        query = "SELECT id, n FROM bad.bad ORDER BY id"
        assert rows(home.live(spark, {"bad": before}), query) == [(1, 1)]
        assert rows(home.live(spark, {"bad": second}), query) == [(1, 1), (2, 2)]
        good.send([({"id": 2}, {"n": 2})])
        taken(home, "good", 2)
        assert rows(home.live(spark), "SELECT count(*) FROM good.good") == [(2,)]

        home.sql("ALTER SOURCES bad SET (on error = 'quarantine')")
        until(lambda: state(home, "bad.bad") == "live", "the table goes on")
        assert rows(home.live(spark), query) == [(1, 1), (2, 2), (5, 5)]
        aside = "SELECT topic, partition, offset, key, value, reason FROM bad.bad_quarantine ORDER BY offset"
        first, null = rows(home.live(spark), aside)
        assert (*first[:3], bytes(first[3]), bytes(first[4])) == (bad.name, 0, 2, b'{"id": 3}', b"{secret")
        assert (*null[:4], bytes(null[4])) == (bad.name, 0, 3, None, b'{"n": 4}')
        assert "its key is null" in null[5]

        home.sql("ALTER SOURCES bad SET (quarantine limit = 3)")
        until(lambda: options(home, "bad").quarantine_limit == 3, "the limit is taken over")
        bad.send([(None, {"n": 6}), (None, {"n": 7})])
        until(lambda: state(home, "bad.bad") == "failed", "there are too many")
        with pytest.raises(DefiniteError, match="offset 5 of partition 0") as caught:
            home.live(spark).table("bad.bad")
        assert "bad.bad_quarantine" in caught.value.hint
        home.sql("ALTER SOURCES bad SET (quarantine limit = 9)")
        until(lambda: state(home, "bad.bad") == "live", "more are allowed")
        assert rows(home.live(spark), "SELECT count(*) FROM bad.bad_quarantine") == [(4,)]


def test_status_and_quarantine_show_at_once_what_a_view_shows(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply rests meanwhile, or is busy: it is the last to know."""
    topic = Topic(broker, "ahead")
    topic.send([({"id": 1}, {"n": 1}), ({"id": 2}, {"n": 2})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    name = f"{topic.source}.{topic.source}"
    aside = f"SELECT offset, reason, quarantined_at IS NULL FROM {name}_quarantine ORDER BY offset"
    with monkeypatch.context() as patch, running(home, spark):
        taken(home, topic.source, 2)
        applied(home, name)
        resting = threading.Event()

        def rest(*_: float) -> float:
            resting.set()
            return PATIENCE

        patch.setattr(table_loops, "pause_after", rest)
        until(resting.is_set, "apply rests")
        topic.send([({"id": 3}, b"{secret"), (None, {"n": 4}), ({"id": 5}, {"n": 5})])
        taken(home, topic.source, 5)
        assert state(home, name) == "live"
        with pytest.raises(TableError) as caught:
            home.live(spark).table(name)
        assert state(home, name) == "failed"
        assert caught.value.message in str(home.sql("SHOW ERRORS"))
        assert caught.value.hint in str(home.sql("SHOW ERRORS"))
        home.sql(f"ALTER SOURCES {topic.source} SET (on error = 'quarantine', quarantine limit = 1)")
        until(lambda: options(home, topic.source).quarantine_limit == 1, "the options are taken over")
        with pytest.raises(TableError, match="offset 2 of partition 0") as caught:
            home.live(spark).table(name)
        assert "SET (quarantine limit" in caught.value.hint
        assert state(home, name) == "failed"
        home.sql(f"ALTER SOURCES {topic.source} SET (quarantine limit = 2)")
        until(lambda: options(home, topic.source).quarantine_limit == 2, "the limit is taken over")
        assert rows(home.live(spark), f"SELECT id FROM {name} ORDER BY id") == [(1,), (2,), (5,)]
        assert state(home, name) == "live"
        ahead = rows(home.live(spark), aside)
        assert [(row[0], row[2]) for row in ahead] == [(2, True), (3, True)]
    with running(home, spark):
        until(lambda: not any(row[2] for row in rows(home.live(spark), aside)), "they are put aside")
        applied(home, name)
        stored = rows(home.live(spark), aside)
        assert [row[:2] for row in stored] == [row[:2] for row in ahead]


@pytest.mark.deep
def test_a_topic_is_read_anew(broker: SharedBroker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker, "again")
    topic.send([({"id": 1}, {"n": "w"}), ({"id": 2}, {"n": "x"})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT", f"{QUICK}, start offset = (1)")
    with running(home, spark):
        taken(home, "again", 1)
        assert rows(home.live(spark), "SELECT * FROM again.again") == [(2, "x")]
        applied(home, "again.again")
        home.retry("again", "again")
        until(lambda: state(home, "again.again") == "live", "it begins anew")
        topic.send([({"id": 3}, {"n": "y"})])
        until(
            lambda: (
                state(home, "again.again") == "live"
                and rows(home.live(spark, wait=PATIENCE), "SELECT * FROM again.again ORDER BY id")
                == [(2, "x"), (3, "y")]
            ),
            "all is there again",
        )


@pytest.mark.deep
def test_a_topic_that_was_made_again_is_read_anew_as_its_error_says(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession
) -> None:
    topic = Topic(broker, "lost")
    topic.send([({"id": 1}, {"n": "w"}), ({"id": 2}, {"n": "x"})])
    home = Home(tmp_path / "home")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    with running(home, spark):
        taken(home, "lost", 2)
        applied(home, "lost.lost")
        topic.make_again()
        topic.send([({"id": 3}, {"n": "y"})])
        until(lambda: state(home, "lost.lost") == "failed", "the loss is seen")
        (found,) = [t for s in home.status().sources for t in s.tables]
        (statement,) = re.findall(r"ALTER SOURCES [^;]*;", found.hint or "")
        home.sql(statement)
        until(
            lambda: (
                state(home, "lost.lost") == "live"
                and rows(home.live(spark, wait=PATIENCE), "SELECT * FROM lost.lost") == [(3, "y")]
            ),
            "it began anew",
        )


def test_the_statement_of_the_readme(
    broker: SharedBroker, registry: SharedRegistry, tmp_path: Path, spark: SparkSession
) -> None:
    """Keys and values of Avro, by a registry; later ones are of a newer schema than the source was made with."""
    statements = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (statement,) = re.findall(r"CREATE SOURCE clicks .*?;", statements, re.DOTALL)
    key, value = record(("id", "long")), record(("url", "string"), ("at", ["null", "long"]))
    newer = record(*value["fields"], {"name": "more", "type": "string", "default": ""})
    topic = Topic(broker, "clicks")

    def message(number: int, of: Any, row: dict[str, Any] | None) -> tuple[bytes, bytes | None]:
        schemas = {"key": key, "value": of}
        ids = [registry.register(f"{topic.name}-{part}", json.dumps(schema)) for part, schema in schemas.items()]
        told = None if row is None else framed(ids[1], avro(of, row))
        return framed(ids[0], avro(key, {"id": number})), told

    topic.send([message(n, value, {"url": f"/{n}", "at": n or None}) for n in range(3)])
    home = Home(tmp_path / "home")
    told = {"k1:9092": broker.bootstrap, "'clicks'": f"'{topic.name}'", "http://registry:8081": registry.url}
    for example, real in told.items():
        statement = statement.replace(example, real)
    home.sql(statement)
    with running(home, spark):
        taken(home, "clicks", 3)
        query = "SELECT id, url, at FROM clicks.clicks ORDER BY id"
        assert rows(home.live(spark), query) == [(0, "/0", None), (1, "/1", 1), (2, "/2", 2)]
        topic.send([message(1, newer, {"url": "/new", "at": 9, "more": "!"}), message(0, newer, None)])
        taken(home, "clicks", 5)
        assert rows(home.live(spark), query) == [(1, "/new", 9), (2, "/2", 2)]
        applied(home, "clicks.clicks")
        assert rows(home.live(spark), query) == [(1, "/new", 9), (2, "/2", 2)]


def debezium_record(op: str, at: int, before: Any, after: Any) -> tuple[Any, Any]:
    """A record of Debezium in JSON, of Postgres."""
    place = {"lsn": at, "sequence": f'["{at}","{at}"]', "ts_ms": 1_700_000_000_000 + at, "snapshot": "false"}
    source = {"connector": "postgresql", "version": "3.2.0.Final", **place}
    return {"id": (after or before)["id"]}, {"op": op, "before": before, "after": after, "source": source}


@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
def test_a_view_shows_no_change_that_does_not_follow_from_the_rows(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As apply does: the same error, and before it has come there."""
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)
    topic, home = Topic(broker, "changes"), Home(tmp_path / "home")
    row, other = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
    topic.send([debezium_record("c", 1, None, row), debezium_record("u", 2, row, other)])
    create(home, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM")
    with running(home, spark):
        applied(home, "changes.changes")
        query = "SELECT id, v FROM changes.changes"
        assert rows(home.live(spark), query) == [(1, "b")]
        merge = TopicApply.merge
        monkeypatch.setattr(TopicApply, "merge", lambda *_: None)
        topic.send([debezium_record("u", 3, row, {"id": 1, "v": "c"})])  # it is b by now
        taken(home, "changes", 3)
        with pytest.raises(TableError, match="takes away a row that is not as it says") as caught:
            rows(home.live(spark), query)
        monkeypatch.setattr(TopicApply, "merge", merge)
        topic.send([debezium_record("c", 4, None, {"id": 2, "v": "d"})])  # there is something to be done again
        until(lambda: state(home, "changes.changes") == "failed", "apply to come there")
        (found,) = [table for one in home.status().sources for table in one.tables]
        assert (found.error, found.hint) == (caught.value.message, caught.value.hint)
