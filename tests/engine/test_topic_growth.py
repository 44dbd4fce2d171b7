"""Topics whose values gain fields: the columns that tables gain, from which tick on, and in every reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.test_source_kinds import running_home
from tests.engine.test_topic_changes import BOTH, captured, changes, log_of, wait_messages
from tests.engine.test_topics import create, debezium_record, rows, wait_for_messages, wait_until_applied
from tests.engine.topic import Topic
from tests.formats.conftest import encoded as avro
from tests.formats.conftest import framed, record
from tests.servers import SharedBroker, SharedRegistry

from penstock.changelog.interface import LoggedTable
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError, TransientError
from penstock.formats import Registry
from penstock.home import Home
from penstock.model import missing_value
from penstock.positions import Lsn
from penstock.sources.kafka import schema_followers
from penstock.sources.kafka.apply.tables import TopicApply
from penstock.tables.base import DeltaBaseTable
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

pytestmark = pytest.mark.usefixtures("in_process")


def logged(home: Home, source: str) -> LoggedTable:
    with closing(log_of(home, source).reader()) as reader:
        (table,) = reader.tables().values()
    return table


def versions(home: Home, source: str) -> list[tuple[int | None, list[str]]]:
    """The versions of the source's table: where each begins, and its columns."""
    table = logged(home, source)
    return [(since, schema.columns.names) for schema, since in zip(table.schemas, table.since, strict=True)]


def logged_rows(home: Home, source: str, after: Lsn, upto: Lsn, columns: Any = None) -> list[dict[str, Any]]:
    """The rows of a range of the log; without `columns`, each has those of its own version."""
    with closing(log_of(home, source).reader()) as reader:
        (name,) = reader.tables()
        batches = reader.read(reader.extent(name, after, upto), columns)
        return [row for batch in batches for row in batch["row"].to_pylist()]


# -- without Spark -----------------------------------------------------------------------------------------------------


def test_new_keys_of_inferred_json(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "grown")
    topic.send([({"id": 1}, {"name": "a"})])
    base = ["id", "name", "place"]
    with captured(tmp_path, broker, topic, f"{BOTH} INCLUDE OFFSET AS place ENVELOPE UPSERT") as home:
        first = wait_messages(home, topic, 1)
        with closing(home.tail("grown", start="earliest")) as running:
            assert changes(running, 1) == [("update", None, {"id": 1, "name": "a", "place": 0})]
            topic.send([({"id": 2}, {"name": "b", "none": None}), ({"id": 3}, {"name": "c", "ID": 7})])
            second = wait_messages(home, topic, 3)
            assert len(versions(home, "grown")) == 1, "null has no type, and ID is the name of the key"
            topic.send([({"id": 4}, {"name": "d", "none": None, "tags": ["x"], "o": {"k": 1}})])
            third = wait_messages(home, topic, 4)
            topic.send([({"id": 5}, {"o": {"k": 2, "deeper": 3}, "none": 1.5}), ({"id": 6}, None)])
            fourth = wait_messages(home, topic, 6)
            wide = changes(running, 5)
        assert versions(home, "grown") == [
            (0, base),
            (third, [*base, "tags", "o"]),
            (fourth, [*base, "tags", "o", "none"]),
        ]
        four = {"id": 4, "name": "d", "place": 3, "tags": ["x"], "o": {"k": 1}}
        assert wide[2] == ("update", None, four)
        assert logged_rows(home, "grown", first, second)[0] == {"id": 2, "name": "b", "place": 1}
        assert logged_rows(home, "grown", second, fourth) == [
            four,
            {"id": 5, "name": None, "place": 4, "tags": None, "o": {"k": 2}, "none": 1.5},
            {"id": 6, "name": None, "place": None, "tags": None, "o": None, "none": None},
        ]
        found = logged_rows(home, "grown", Lsn(0), fourth, logged(home, "grown").schema.columns)
        assert [row["none"] for row in found] == [None, None, None, None, 1.5, None]
        with pytest.raises(DefiniteError, match="changed its columns"):  # a streaming query that runs
            logged_rows(home, "grown", Lsn(0), fourth, logged(home, "grown").schemas[0].columns)


def test_new_keys_are_held_until_the_option_changes(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "held")
    topic.send([(None, {"n": 1})])
    with captured(tmp_path, broker, topic, "FORMAT JSON", ", new columns = 'hold'") as home:
        wait_messages(home, topic, 1)
        topic.send([(None, {"n": 2, "x": "unread"})])
        before = wait_messages(home, topic, 2)
        assert versions(home, "held") == [(0, ["n"])]
    home.sql("ALTER SOURCES held SET (new columns = 'add')")
    with home.run(MemoryTables(), list[str]().append):
        topic.send([(None, {"n": 3, "x": "read"})])
        after = wait_messages(home, topic, 3)
        assert versions(home, "held") == [(0, ["n"]), (after, ["n", "x"])]
        assert logged_rows(home, "held", Lsn(0), before) == [{"n": 1}, {"n": 2}]
        assert logged_rows(home, "held", before, after) == [{"n": 3, "x": "read"}]


def test_capture_that_ends_between_the_columns_and_the_tick(
    tmp_path: Path, broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker, "crashed")
    topic.send([(None, {"n": 1})])
    publish = SqliteLogWriter.publish
    died: list[Lsn] = []

    def dies(writer: Any, chunks: Any, durable: Lsn, **options: Any) -> None:
        if chunks and durable == 2 and not died:
            died.append(durable)
            message = "the process ends here"
            raise TransientError(message)
        publish(writer, chunks, durable, **options)

    with captured(tmp_path, broker, topic, "FORMAT JSON") as home:
        wait_messages(home, topic, 1)
        monkeypatch.setattr(SqliteLogWriter, "publish", dies)
        topic.send([(None, {"n": 2, "x": True})])
        upto = wait_messages(home, topic, 2)
        assert (died, upto) == ([2], 2)
        assert versions(home, "crashed") == [(0, ["n"]), (2, ["n", "x"])]
        assert logged_rows(home, "crashed", Lsn(0), upto) == [{"n": 1}, {"n": 2, "x": True}]
        topic.send([(None, {"n": 3, "x": False, "y": 1})])
        assert logged_rows(home, "crashed", upto, wait_messages(home, topic, 3)) == [{"n": 3, "x": False, "y": 1}]
    with home.run(MemoryTables(), list[str]().append):
        topic.send([(None, {"n": 4, "x": False, "y": 2, "z": "new"})])
        wait_messages(home, topic, 4)
        assert [names for _, names in versions(home, "crashed")][2:] == [["n", "x", "y"], ["n", "x", "y", "z"]]


def test_table_that_is_read_again_after_it_gained_columns(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "again")
    topic.send([(None, {"n": 1})])
    with captured(tmp_path, broker, topic, "FORMAT JSON") as home:
        wait_messages(home, topic, 1)
        topic.send([(None, {"n": 2, "x": 1.5})])
        before = wait_messages(home, topic, 2)
        home.sql("ALTER SOURCES again RETRY TABLE again")

        def is_read() -> bool:
            durable = home.frontiers("again").durable
            return durable > before and len(logged_rows(home, "again", logged(home, "again").valid, durable)) == 2

        until(is_read, "the messages to be read again")
        table = logged(home, "again")
        assert (table.generation, table.schema.columns.names) == (1, ["n", "x"])
        topic.send([(None, {"n": 3, "x": 2.5, "y": "new"})])
        until(lambda: logged(home, "again").schema.columns.names == ["n", "x", "y"], "the new column")
        until(lambda: len(logged_rows(home, "again", table.valid, home.frontiers("again").durable)) == 3, "its row")
        found = logged_rows(home, "again", table.valid, home.frontiers("again").durable)
        assert found == [{"n": 1, "x": None}, {"n": 2, "x": 1.5}, {"n": 3, "x": 2.5, "y": "new"}]


def test_keys_that_are_values_do_not_become_columns_without_end(
    tmp_path: Path, broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_followers, "_MOST_COLUMNS", 3)
    topic = Topic(broker, "dynamic")
    topic.send([(None, {"n": 1})])
    with captured(tmp_path, broker, topic, "FORMAT JSON") as home:
        wait_messages(home, topic, 1)
        topic.send([(None, {"n": 2, "a": 1, "b": 1, "c": 1})])

        def waits() -> bool:
            (source,) = home.status().sources
            return source.error is not None and "more than 3 columns" in source.error

        until(waits, "the error")
        assert len(versions(home, "dynamic")) == 1
        home.sql("ALTER SOURCES dynamic SET (new columns = 'hold')")
        assert logged_rows(home, "dynamic", Lsn(0), wait_messages(home, topic, 2)) == [{"n": 1}, {"n": 2}]


def order(*fields: Any) -> str:
    return json.dumps(record({"name": "n", "type": "long"}, *fields))


def test_versions_of_an_avro_schema(tmp_path: Path, broker: SharedBroker, registry: SharedRegistry) -> None:
    """Each version counts, not only the latest; an older row has the default; a nested field and a type are kept."""
    topic = Topic(broker, "orders")
    inner = record(("k", "long"), name="shop.Inner")
    subject = f"{topic.name}-value"
    first = order({"name": "o", "type": ["null", inner], "default": None})
    one = registry.register(subject, first)
    topic.send([(None, framed(one, avro(json.loads(first), {"n": 1, "o": {"k": 1}})))])
    place = f"FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}'"
    with captured(tmp_path, broker, topic, place) as home:
        before = wait_messages(home, topic, 1)
        x = {"name": "x", "type": ["string", "null"], "default": "none yet"}
        second = order(json.loads(first)["fields"][1], x)
        deeper = record(("k", "long"), {"name": "l", "type": "long", "default": 0}, name="shop.Inner")
        third = order({"name": "o", "type": ["null", deeper], "default": None}, {"name": "y", "type": {
            "type": "int", "logicalType": "date"}, "default": 3})  # fmt: skip
        two, three = registry.register(subject, second), registry.register(subject, third)
        topic.send([(None, framed(two, avro(json.loads(second), {"n": 2, "o": None, "x": "two"})))])
        topic.send([(None, framed(three, avro(json.loads(third), {"n": 3, "o": {"k": 3, "l": 4}, "y": 5})))])
        topic.send([(None, framed(one, avro(json.loads(first), {"n": 4, "o": None})))])
        upto = wait_messages(home, topic, 4)
        assert versions(home, "orders") == [(0, ["n", "o"]), (before + 1, ["n", "o", "x", "y"])]
        table = logged(home, "orders")
        found = logged_rows(home, "orders", Lsn(0), upto, table.schema.columns)
        assert [(row["n"], row["o"], row["x"], str(row["y"])) for row in found] == [
            (1, {"k": 1}, "none yet", "1970-01-04"),
            (2, None, "two", "1970-01-04"),
            (3, {"k": 3}, "none yet", "1970-01-06"),
            (4, None, "none yet", "1970-01-04"),
        ]


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_versions_of_other_schemas(tmp_path: Path, broker: SharedBroker, registry: SharedRegistry, kind: str) -> None:
    topic = Topic(broker, "typed")
    if kind == "JSON":
        texts = [
            json.dumps({"type": "object", "properties": {"n": {"type": "integer"}, **more}})
            for more in ({}, {"x": {"type": "string"}})
        ]
        payloads, missing = [b'{"n": 1}', b'{"n": 2, "x": "two"}'], None
    else:
        text = 'syntax = "proto3"; message M { int64 n = 1; %s }'
        texts = [text % more for more in ("", "string x = 2;")]
        payloads, missing = [b"\0\x08\x01", b"\0\x08\x02\x12\x03two"], ""
    one = registry.register(f"{topic.name}-value", texts[0], kind)
    topic.send([(None, framed(one, payloads[0]))])
    with captured(tmp_path, broker, topic, f"FORMAT {kind} USING SCHEMA REGISTRY '{registry.url}'") as home:
        wait_messages(home, topic, 1)
        two = registry.register(f"{topic.name}-value", texts[1], kind)
        topic.send([(None, framed(two, payloads[1])), (None, framed(one, payloads[0]))])
        upto = wait_messages(home, topic, 3)
        assert versions(home, "typed") == [(0, ["n"]), (2, ["n", "x"])]
        table = logged(home, "typed")
        assert missing_value(table.schema.columns.field("x"))[0].as_py() == missing
        found = logged_rows(home, "typed", Lsn(0), upto, table.schema.columns)
        assert [(row["n"], row["x"]) for row in found] == [(1, missing), (2, "two"), (1, missing)]


def test_registry_that_does_not_respond_delays_the_tick(
    tmp_path: Path, broker: SharedBroker, registry: SharedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker, "waiting")
    one = registry.register(f"{topic.name}-value", order())
    topic.send([(None, framed(one, avro(json.loads(order()), {"n": 1})))])
    with captured(tmp_path, broker, topic, f"FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}'") as home:
        before = wait_messages(home, topic, 1)

        def fails(*_: Any) -> Iterator[None]:
            message = "could not reach the schema registry"
            raise TransientError(message)

        with monkeypatch.context() as patch:
            patch.setattr(Registry, "versions_after", fails)
            topic.send([(None, framed(one, avro(json.loads(order()), {"n": 2})))])

            def waits() -> bool:
                (source,) = home.status().sources
                return source.error is not None and "schema registry" in source.error

            until(waits, "the error")
            assert home.frontiers("waiting").durable == before
        assert logged_rows(home, "waiting", before, wait_messages(home, topic, 2)) == [{"n": 2}]


def connect(*fields: tuple[str, str, Any], **parameters: Any) -> Callable[..., dict[str, Any]]:
    """Return what writes Debezium's records with their schema; a field is its name, its type and its Connect name."""
    row = [{"field": name, "type": kind, "optional": True, **({"name": named} if named else {})}
           for name, kind, named in fields]  # fmt: skip
    places = [{"field": place, "type": "struct", "optional": True, "fields": row} for place in ("before", "after")]
    around = [{"field": "op", "type": "string", "optional": False}]
    schema = {"type": "struct", "fields": [*places, *around], **parameters}

    def message(**values: Any) -> dict[str, Any]:
        return {"schema": schema, "payload": {"before": None, "after": values, "op": "c"}}

    return message


def test_schemas_in_messages(tmp_path: Path, broker: SharedBroker) -> None:
    topic = Topic(broker, "wrapped")
    narrow = connect(("id", "int64", None))
    wide = connect(("id", "int64", None), ("at", "int64", "io.debezium.time.MicroTimestamp"))
    other = connect(("id", "int64", None), ("at", "int64", "io.debezium.time.Timestamp"))
    topic.send([({"id": 1}, narrow(id=1))])
    with captured(tmp_path, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM UPSERT") as home:
        wait_messages(home, topic, 1)
        topic.send([({"id": 2}, wide(id=2, at=1_000_000))])
        upto = wait_messages(home, topic, 2)
        assert versions(home, "wrapped") == [(0, ["id"]), (2, ["id", "at"])]
        found = logged_rows(home, "wrapped", Lsn(0), upto, logged(home, "wrapped").schema.columns)
        assert [str(row["at"]) for row in found] == ["None", "1970-01-01 00:00:01"]
        topic.send([({"id": 3}, other(id=3, at=1_000_000))])
        with pytest.raises(DefiniteError, match="another logical type"):
            logged_rows(home, "wrapped", upto, wait_messages(home, topic, 3))


# -- in Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("the only test of growth in the base table and the live view, with nine reads in Spark")
@pytest.mark.parametrize("interrupted", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_live_base_and_past(
    tmp_path: Path,
    broker: SharedBroker,
    registry: SharedRegistry,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    """Columns in a range that apply has not reached, in one that it has, and at a position before them."""
    topic = Topic(broker, "evolved")
    first, second = order(), order({"name": "x", "type": "string", "default": "none"})
    one = registry.register(f"{topic.name}-value", first)

    def send(schema_id: int, text: str, key: int, **value: Any) -> None:
        topic.send([({"id": key}, framed(schema_id, avro(json.loads(text), value)))])

    send(one, first, 1, n=1)
    home = Home(tmp_path / "home")
    key = "KEY FORMAT JSON COLUMNS (id bigint) WITHOUT REGISTRY"
    values = f"VALUE FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}' INCLUDE OFFSET ENVELOPE UPSERT"
    create(home, broker, topic, f"{key} {values}")
    query = "SELECT * FROM evolved.evolved ORDER BY id"
    with running_home(home, spark):
        before = wait_for_messages(home, "evolved", 1)
        wait_until_applied(home, "evolved.evolved")
        merge = TopicApply.merge
        monkeypatch.setattr(TopicApply, "merge", lambda *_: None)
        send(one, first, 2, n=2)
        between = wait_for_messages(home, "evolved", 2)
        two = registry.register(f"{topic.name}-value", second)
        send(two, second, 3, n=3, x="three")
        send(one, first, 1, n=4)
        topic.send([({"id": 2}, None)])
        upto = wait_for_messages(home, "evolved", 5)
        assert [since for since, _ in versions(home, "evolved")] == [0, between + 1]
        expected = [(1, 4, 3, "none"), (3, 3, 2, "three")]
        past = [(1, 1, 0), (2, 2, 1)]
        assert rows(home.live(spark), query) == expected
        assert rows(home.live(spark, {"evolved": between}), query) == past
        if interrupted:
            monkeypatch.setattr(DeltaBaseTable, "merge", once(DeltaBaseTable.merge))
        monkeypatch.setattr(TopicApply, "merge", merge)
        send(two, second, 4, n=5, x="five")
        last = wait_for_messages(home, "evolved", 6)
        wait_until_applied(home, "evolved.evolved")
        expected.append((4, 5, 5, "five"))
        live = home.live(spark)
        assert rows(live, query) == expected
        assert live.table("evolved.evolved").columns == ["id", "n", "offset", "x"]
        assert rows(home.live(spark, {"evolved": before}), query) == [(1, 1, 0)]
        assert rows(home.live(spark, {"evolved": between}), query) == past
        assert rows(home.live(spark, {"evolved": upto}), query) == expected[:2]
        read = {"home": str(home.path), "source": "evolved", "table": f"topic.{topic.name}", "rows": "live"}
        found = spark.read.format("penstock").options(**read, asOf=str(last)).load().orderBy("id")
        assert [(row["id"], row["x"]) for row in found.collect()] == [(1, "none"), (3, "three"), (4, "five")]


def once(merge: Callable[..., None]) -> Callable[..., None]:
    """Return a merge whose first call fails, as if the process had ended after the columns were added."""
    failed: list[None] = []

    def merged(*given: Any, **options: Any) -> None:
        if not failed:
            failed.append(None)
            message = "the process ends here"
            raise TransientError(message)
        merge(*given, **options)

    return merged


@pytest.mark.deep
def test_debezium_records_that_gain_a_column(
    tmp_path: Path, broker: SharedBroker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of the new column is in no record: the old row of an update has it, and the table null."""
    topic, home = Topic(broker, "altered"), Home(tmp_path / "home")
    one, two = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}
    topic.send([debezium_record("c", 1, None, one), debezium_record("c", 2, None, two)])
    create(home, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM")
    query = "SELECT * FROM altered.altered ORDER BY id"
    with running_home(home, spark):
        wait_until_applied(home, "altered.altered")
        merge = TopicApply.merge
        monkeypatch.setattr(TopicApply, "merge", lambda *_: None)
        topic.send([debezium_record("u", 3, two, {"id": 2, "v": "c"})])
        wait_for_messages(home, "altered", 3)
        topic.send([debezium_record("u", 4, {**one, "x": 5}, {"id": 1, "v": "a", "x": 6})])
        wait_for_messages(home, "altered", 4)
        assert rows(home.live(spark), query) == [(1, "a", 6), (2, "c", None)]
        monkeypatch.setattr(TopicApply, "merge", merge)
        topic.send([debezium_record("d", 5, {"id": 2, "v": "c", "x": 5}, None)])
        wait_for_messages(home, "altered", 5)
        wait_until_applied(home, "altered.altered")
        assert rows(home.live(spark), query) == [(1, "a", 6)]
