"""Records that both Debezium envelopes accept or reject, with the hint. Each case has its own partition."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.envelopes.connector import RECORD, ROW, SOURCE, record, row
from tests.envelopes.topics import Message, arrow_batch, assert_same, frame

from penstock.envelopes import (
    DebeziumState,
    Deduplicated,
    debezium,
    debezium_shape,
    debezium_upsert,
    reject_compacted,
)
from penstock.envelopes.arrow_images import debezium_upsert_images
from penstock.errors import UsageError
from penstock.model import Image, TableName

KEY = {"topic": 0, "id": 1}
MYSQL = {"connector": "mysql", "sequence": None, "lsn": None, "file": "binlog.000003", "pos": 4, "row": 0}


def change(lsn: int, commit: int | None = 5, op: str = "c", **parts: Any) -> dict[str, Any]:
    """Return a record at a position in the WAL."""
    last = "null" if commit is None else f'"{commit}"'
    rows = {"c": (None, row(1)), "u": (row(1), row(1, 1)), "d": (row(1), None), "r": (None, row(1))}[op]
    return record(op, *rows, lsn=lsn, sequence=f'[{last},"{lsn}"]', **parts)


def read_row(id_: int, lsn: int = 1, **parts: Any) -> dict[str, Any]:
    """Return a row of the snapshot."""
    return record("r", None, row(id_), lsn=lsn, sequence=f'[null,"{lsn}"]', **{"snapshot": "true", **parts})


def deduplicated(spark: SparkSession, partitions: Sequence[Sequence[dict[str, Any] | None]]) -> Deduplicated:
    """Read records; the key of each is that of its row."""
    messages = [
        Message(_key(value), value, partition, offset)
        for partition, values in enumerate(partitions)
        for offset, value in enumerate(values)
    ]
    read = frame(spark, messages, value=RECORD)
    return debezium(read, debezium_shape(read), DebeziumState())


def _key(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return KEY
    visible = value["after"] or value["before"]
    return None if visible is None else {"topic": visible["topic"], "id": visible["id"]}


def problems(result: Any) -> dict[tuple[int, int], str]:
    return {(one["partition"], one["offset"]): one["problem"] for one in result.rejected.collect()}


def offsets(result: Any) -> dict[int, list[int]]:
    """Return, per partition, the offsets of messages that produced images, one per image."""
    found: dict[int, list[int]] = {}
    for image in result.images.orderBy("_ordinal", "_image").collect():
        found.setdefault(image["_ordinal"] >> 44, []).append(image["_ordinal"] & (2**44 - 1))
    return found


def test_rejected_records_name_the_constraint_and_a_hint(spark: SparkSession) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (record("c", None, row(1), connector=None), "source.connector"),
        (record("c", None, row(1), connector="sqlserver"), "SQL Server"),
        (record("c", None, row(1), connector="oracle"), "neither Postgres nor MySQL"),
        (record("c", None, row(1), version="1.4.2.Final"), "before 1.5"),
        (record("c", None, row(1), version="0.10.0.Final"), "before 1.5"),
        (record("c", None, row(1), version=None), "before 1.5"),
        (record("r", None, row(1), snapshot="incremental"), "incremental snapshot"),
        (record("c", None, row(1), snapshot="perhaps"), "source.snapshot"),
        (record("c", None, row(1), sequence=None), "no position"),
        (record("c", None, row(1), sequence="[]"), "no position"),
        (record("c", None, row(1), lsn=None), "no position"),
        (record("c", None, row(1), **{**MYSQL, "file": "binlog"}), "no position"),
        (record("c", None, row(1), **{**MYSQL, "pos": None}), "no position"),
        (record("u", None, row(1)), "REPLICA IDENTITY FULL"),
        (record("c", row(1), None), "no 'after'"),
        (record("x", None, row(1)), "op is none of"),
        (record("t"), "several partitions"),
    ]
    result = deduplicated(spark, [[value] for value, _ in cases])
    found = problems(result)
    for partition, (_, expected) in enumerate(cases):
        assert expected in found[partition, 0]
    assert result.images.isEmpty()


def test_accepted_records(spark: SparkSession) -> None:
    cases = [
        record("c", None, row(1), version="1.5.0.Final"),
        record("c", None, row(1), version="10.0.0.CR1"),
        record("c", None, row(1), sequence='[null,"100"]'),
        record("c", None, row(1), sequence='["5", "100"]'),
        record("c", None, row(1), snapshot=None),
        record("c", None, row(1), **MYSQL),
        record("r", None, row(1), snapshot="true", sequence=None, lsn=None),
        record("c", None, row(1), snapshot="last"),
    ]
    result = deduplicated(spark, [[value] for value in cases])
    assert problems(result) == {}
    assert offsets(result) == {partition: [0] for partition in range(len(cases))}


def test_changes_become_images(spark: SparkSession) -> None:
    values = [change(10), change(11, op="u"), change(12, op="d"), None]
    images = deduplicated(spark, [values]).images.orderBy("_ordinal", "_image").collect()
    assert [(one["_ordinal"], one["_image"], tuple(one["row"])) for one in images] == [
        (0, Image.INSERTED, (0, 1, 0)),
        (1, Image.BEFORE, (0, 1, 0)),
        (1, Image.UPDATED, (0, 1, 1)),
        (2, Image.DELETED, (0, 1, 0)),
    ]


def test_order(spark: SparkSession) -> None:
    result = deduplicated(
        spark,
        [
            [change(10), change(30), change(20), change(40)],  # 20 was out of order
            [change(10), change(30), change(20), change(30), change(40)],  # a replay
            [change(900, 900), change(10, 10, ts_ms=1_800_000_000_000)],  # the log was reset
            [change(20, 5), change(10, 21)],  # concurrent transactions
            [change(9, None), change(10, 5)],  # no commit before the first one
            [
                record("c", None, row(1), **MYSQL),
                record("c", None, row(1), **{**MYSQL, "file": "binlog.000010", "pos": 1}),
            ],
            [record("c", None, row(id_), lsn=100) for id_ in (1, 2, 1, 3)],  # one COPY
        ],
    )
    found = problems(result)
    assert set(found) == {(0, 3), (2, 1)}
    assert "out of order" in found[0, 3]
    assert "its log was reset" in found[2, 1]
    assert offsets(result) == {0: [0, 1], 1: [0, 1, 4], 2: [0], 3: [0, 1], 4: [0, 1], 5: [0, 1], 6: [0, 1, 3]}


def test_snapshots(spark: SparkSession) -> None:
    result = deduplicated(
        spark,
        [
            [read_row(1), read_row(2), read_row(1), read_row(2), read_row(3)],
            [read_row(1), change(5), read_row(1), read_row(2)],  # the same snapshot repeated after a change
            [read_row(1), read_row(2, lsn=9)],  # a second snapshot
            [read_row(1), change(5), read_row(2, lsn=9)],
            [change(5), read_row(2, lsn=9), read_row(3, lsn=9)],
        ],
    )
    found = problems(result)
    assert set(found) == {(2, 1), (3, 2), (4, 1), (4, 2)}
    assert all("second snapshot" in problem for problem in found.values())
    assert offsets(result) == {0: [0, 1, 4], 1: [0, 1], 2: [0], 3: [0, 1], 4: [0]}
    assert result.state.has_open_snapshot


def test_upsert_accepts_any_connector_without_before(spark: SparkSession) -> None:
    values: list[dict[str, Any] | None] = [
        record("c", None, row(1), connector="sqlserver", sequence=None, lsn=None, version="1.0.0.Final"),
        record("u", None, row(1, 1), snapshot="incremental"),
        record("d"),
        None,
        record("u", None, None),
        record("x", None, row(1)),
        record("t"),
        record("c", None, row(2)),
    ]
    messages = [Message(KEY, value, 0, offset) for offset, value in enumerate(values)]
    messages.append(Message(None, record("t"), 0, len(values)))
    read = frame(spark, messages, value=RECORD)
    shape = debezium_shape(read)
    result = debezium_upsert(read, shape)
    assert_same(result, debezium_upsert_images(arrow_batch(read), shape.schema(TableName("public", "t"))))
    images = result.images.orderBy("_ordinal").collect()
    assert [(one["_ordinal"], one["_image"], tuple(one["row"])) for one in images] == [
        (0, Image.UPDATED, (0, 1, 0)),
        (1, Image.UPDATED, (0, 1, 1)),
        (2, Image.DELETED_KEY, (0, 1, None)),
        (3, Image.DELETED_KEY, (0, 1, None)),
    ]
    found = problems(result)
    expected = {
        4: "no 'after'",
        5: "op is none of",
        6: "several partitions",
        7: "different values",
        8: "several partitions",
    }
    assert set(found) == {(0, offset) for offset in expected}
    assert all(text in found[0, offset] for offset, text in expected.items())


def test_incremental_snapshot(spark: SparkSession) -> None:
    """Its rows are between changes, at the position of the last change: each is the latest row of its key."""
    read_again = {"snapshot": "incremental", "lsn": 2, "sequence": '["5","2"]'}
    values = [change(1), change(2, op="u"), record("r", None, row(1, 7), **read_again), change(3, op="d")]
    messages = [Message(_key(value), value, 0, offset) for offset, value in enumerate(values)]
    read = frame(spark, messages, value=RECORD)
    shape = debezium_shape(read)
    upserted = debezium_upsert(read, shape)
    assert_same(upserted, debezium_upsert_images(arrow_batch(read), shape.schema(TableName("public", "t"))))
    images = upserted.images.orderBy("_ordinal").collect()
    assert [(one["_image"], one["row"]["n"]) for one in images[2:]] == [(Image.UPDATED, 7), (Image.DELETED_KEY, None)]
    stateful = debezium(read, shape, DebeziumState())
    assert "ENVELOPE DEBEZIUM UPSERT" in problems(stateful)[0, 2]
    assert offsets(stateful) == {0: [0, 1, 1, 3]}


def test_truncate_in_the_only_partition(spark: SparkSession) -> None:
    """It empties the table in both envelopes, and is no change if Debezium repeats it."""
    values = [change(1), record("t", lsn=2, sequence='["5","2"]'), change(3), record("t", lsn=2, sequence='["5","2"]')]
    messages = [Message(_key(value), value, 0, offset) for offset, value in enumerate(values)]
    read = frame(spark, messages, value=RECORD).withColumn("only_partition", F.col("offset") < 9)
    shape = debezium_shape(read)
    upserted = debezium_upsert(read, shape)
    assert_same(upserted, debezium_upsert_images(arrow_batch(read), shape.schema(TableName("public", "t"))))
    found = [
        (one["_ordinal"], one["_image"], one["row"] is None) for one in upserted.images.orderBy("_ordinal").collect()
    ]
    truncate, updated, inserted = int(Image.TRUNCATE), int(Image.UPDATED), int(Image.INSERTED)
    assert found == [(0, updated, False), (1, truncate, True), (2, updated, False), (3, truncate, True)]
    once = debezium(read, shape, DebeziumState()).images.orderBy("_ordinal").collect()
    assert [(one["_ordinal"], one["_image"]) for one in once] == [(0, inserted), (1, truncate), (2, inserted)]


def test_records_about_no_row_are_skipped(spark: SparkSession) -> None:
    """Logical messages and heartbeats have keys of their own, of which nothing is left among these columns."""
    nothing = {"before": None, "after": None, "source": None}
    values = [
        {**record("m"), "ts_ms": 5},
        {**nothing, "op": None, "ts_ms": 5},
        {**nothing, "op": None, "ts_ms": None},
        {**nothing, "op": "x", "ts_ms": 5},
        {**change(10), "ts_ms": 5},
    ]
    messages = [Message(KEY if value["op"] == "c" else None, value, 0, at) for at, value in enumerate(values)]
    messages.append(Message({"topic": None, "id": None}, values[0], 0, len(values)))
    read = frame(spark, messages, value=RECORD.replace("op:string", "op:string,ts_ms:bigint"))
    shape = debezium_shape(read)
    exactly_once, upserts = debezium(read, shape, DebeziumState()), debezium_upsert(read, shape)
    assert_same(upserts, debezium_upsert_images(arrow_batch(read), shape.schema(TableName("public", "t"))))
    for result in (exactly_once, upserts):
        assert offsets(result) == {0: [4]}
        found = problems(result)
        assert set(found) == {(0, 2), (0, 3)}
        assert all("op is none of" in problem for problem in found.values())
    assert exactly_once.state.partitions[0].highest is not None
    without_time = frame(spark, [Message(None, record("m"))], value=RECORD)
    assert debezium_upsert(without_time, shape).results.isEmpty()
    assert debezium(without_time, shape, DebeziumState()).results.isEmpty()
    arrow = debezium_upsert_images(arrow_batch(without_time), shape.schema(TableName("public", "t")))
    assert (len(arrow.images), len(arrow.rejected)) == (0, 0)


def test_placeholders_are_rejected(spark: SparkSession) -> None:
    kind = (
        "struct<id:int,t:string,b:binary,m:map<string,string>,a:array<string>,i:array<int>,l:array<bigint>,"
        "d:array<date>,r:array<binary>>"
    )
    hidden = "__debezium_unavailable_value"
    epoch = datetime.date(1970, 1, 1)
    dates = [epoch + datetime.timedelta(byte) for byte in hidden.encode()]
    plain = {"id": 1, "t": "x", "b": b"y", "m": {"k": "v"}, "a": ["z"], "i": [95], "l": [], "d": [epoch], "r": [b"q"]}
    marks = [
        ("t", hidden),
        ("t", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("t", f'{{"{hidden}":"{hidden}"}}'),
        ("b", hidden.encode()),
        ("m", {hidden: hidden}),
        ("a", [hidden]),
        ("a", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("i", list(hidden.encode())),
        ("l", list(hidden.encode())),
        ("d", dates),
        ("r", [hidden.encode()]),
    ]
    rows = [plain, {"id": 1}, *({**plain, name: mark} for name, mark in marks)]
    messages = [Message({"id": 1}, {"after": one, "op": "u"}, 0, offset) for offset, one in enumerate(rows)]
    read = frame(spark, messages, "struct<id:int>", f"struct<after:{kind},op:string>")
    shape = debezium_shape(read)
    result = debezium_upsert(read, shape)
    assert_same(result, debezium_upsert_images(arrow_batch(read), shape.schema(TableName("public", "t"))))
    found = problems(result)
    assert set(found) == {(0, offset) for offset in range(2, len(rows))}
    for offset, (name, _) in enumerate(marks, 2):
        assert f"column '{name}'" in found[0, offset]
        assert "REPLICA IDENTITY FULL" in found[0, offset]


def test_records_wrapped_with_their_schema(spark: SparkSession) -> None:
    values = [change(10), change(11, op="u"), change(11, op="u"), change(12, op="d")]
    messages = [
        Message({"schema": "…", "payload": KEY}, {"schema": "…", "payload": value}, 0, offset)
        for offset, value in enumerate(values)
    ]
    key = "struct<schema:string,payload:struct<topic:int,id:int>>"
    read = frame(spark, messages, key, f"struct<schema:string,payload:{RECORD}>")
    wrapped = debezium(read, debezium_shape(read), DebeziumState())
    plain = deduplicated(spark, [values])
    assert (
        wrapped.images.orderBy("_ordinal", "_image").collect() == plain.images.orderBy("_ordinal", "_image").collect()
    )
    assert wrapped.state == plain.state


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("struct<id:int>", "struct<id:int,n:int>", "not Debezium records"),
        ("struct<id:int>", f"struct<after:{ROW},op:string,source:{SOURCE}>", "requires the field 'before'"),
        ("struct<id:int>", f"struct<before:{ROW},after:{ROW},op:string>", "requires the field 'source'"),
        ("struct<other:int>", RECORD, "not the primary key"),
    ],
)
def test_unsuitable_topics_are_rejected(spark: SparkSession, key: str, value: str, expected: str) -> None:
    read = frame(spark, [], key, value)
    with pytest.raises(UsageError, match=expected):
        debezium(read, debezium_shape(read), DebeziumState())


def test_compacted_topics_are_rejected() -> None:
    reject_compacted("orders", "delete")
    for policy in ("compact", "compact,delete", "delete, compact"):
        with pytest.raises(UsageError, match="DEBEZIUM UPSERT"):
            reject_compacted("orders", policy)
