"""Random topics of keyed rows, and the resulting tables, in plain Python.

A topic is written in one order; the location of a message (partition, offset), and when it is read (tick), follow from
that. The reference knows the order of writing alone, and nothing of partitions, offsets and ticks.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from penstock.envelopes import Enveloped
from penstock.envelopes.arrow_images import ArrowImages, MessageBatch
from penstock.model import Image

NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
KEY = "struct<topic:int,id:int>"
VALUE = "struct<id:int,n:int>"
SPREAD = 8
"""Partitions per topic: all topics are in one frame, so the second topic starts at partition 8."""

Location = tuple[int, int]
Table = dict[Any, Any]


@dataclass(frozen=True)
class Message:
    """One message, as decoded."""

    key: Any
    value: Any
    partition: int = 0
    offset: int = 0
    tick: int = 1
    problem: str | None = None

    @property
    def location(self) -> Location:
        return self.partition, self.offset


@dataclass
class Batch:
    """One batch: messages, the table after them, and the locations of messages that must be rejected."""

    messages: list[Message] = field(default_factory=list)
    table: Table = field(default_factory=dict)
    rejected: set[Location] = field(default_factory=set)


def fields(**kinds: DataType) -> StructType:
    """Return the type of a key or value, without a Spark session."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def frame(spark: SparkSession, messages: Iterable[Message], key: str = KEY, value: str = VALUE) -> DataFrame:
    """Make a frame of decoded messages."""
    rows = [
        (m.key, m.value, m.value is None and m.problem is None, m.tick, m.partition, m.offset, NOON, m.problem)
        for m in messages
    ]
    columns = f"key {key}, value {value}, tombstone boolean, _tick bigint, partition int, offset bigint"
    return spark.createDataFrame(rows, f"{columns}, timestamp timestamp, problem string")


def arrow_batch(messages: DataFrame) -> MessageBatch:
    """Return the messages of a frame as a batch of Arrow."""
    found = messages.toArrow().combine_chunks()
    columns = {name: found.column(name) for name in found.column_names}
    whole = {name: column.combine_chunks() for name, column in columns.items()}
    return MessageBatch(
        key=whole["key"],
        value=whole["value"],
        tombstone=whole["tombstone"],
        tick=whole["_tick"],
        partition=whole["partition"],
        offset=whole["offset"],
        timestamp=whole["timestamp"].cast(pa.timestamp("us", "UTC")),
        problem=whole["problem"],
        only_partition=whole.get("only_partition"),
    )


def assert_same(one: Enveloped, other: ArrowImages) -> None:
    """Compare the images and the rejected messages of Spark and Arrow."""
    fields = ("_lsn", "_ordinal", "_image", "_xid", "_unchanged", "row")
    images = sorted([{name: row[name] for name in fields} for row in one.images.toArrow().to_pylist()], key=str)
    assert images == sorted([{name: row[name] for name in fields} for row in other.images.to_pylist()], key=str)
    rejected = sorted(one.rejected.toArrow().to_pylist(), key=str)
    assert rejected == sorted(other.rejected.to_pylist(), key=str)


def apply_images(table: Table, images: Iterable[Any], key: Any) -> Table:
    """Return the table after applying images; `key` extracts the key of a row."""
    table = dict(table)
    for image in sorted(images, key=lambda one: (one["_lsn"], one["_ordinal"], one["_image"])):
        assert image["_image"] != Image.TRUNCATE
        row = image["row"]
        if Image(image["_image"]).asserts:
            table[key(row)] = row["n"]
        else:
            table.pop(key(row), None)
    return table


def upsert_topic(random: Random, topic: int, batches: int) -> list[Batch]:
    """Write a topic of rows: puts, tombstones, replays, and messages that must be rejected."""
    table: Table = {}
    offsets: dict[int, int] = defaultdict(int)
    written: list[tuple[int, int | None]] = []
    partitions = random.randint(1, 3)
    result = []
    for number in range(batches):
        batch = Batch()
        if number and random.random() < 0.5:
            partitions = min(partitions + random.randint(1, 3), SPREAD)  # keys move
        for tick in range(number * 10, number * 10 + random.randint(1, 3)):
            for _ in range(random.randint(0, 5)):
                _write_some(random, topic, tick, partitions, offsets, written, table, batch)
        batch.table = dict(table)
        result.append(batch)
    return result


def _write_some(
    random: Random,
    topic: int,
    tick: int,
    partitions: int,
    offsets: dict[int, int],
    written: list[tuple[int, int | None]],
    table: Table,
    batch: Batch,
) -> None:
    def put(key: Any, value: Any, id_: int, problem: str | None = None) -> None:
        partition = topic * SPREAD + (id_ * 7 + 3) % partitions
        message = Message(key, value, partition, offsets[partition], tick, problem)
        offsets[partition] += random.randint(1, 3)  # transaction markers and compaction leave holes
        batch.messages.append(message)
        if problem or key is None or (value is not None and value["id"] != key["id"]):
            batch.rejected.add(message.location)

    id_, n = random.randint(0, 4), random.randint(0, 999)
    key = {"topic": topic, "id": id_}
    action = random.choices(["put", "gone", "again", "null key", "corrupt", "other id"], [60, 15, 10, 5, 5, 5])[0]
    match action:
        case "null key":
            put(None, {"id": id_, "n": n}, id_)
        case "corrupt":
            put(key, None, id_, "it is corrupt")
        case "other id":
            put(key, {"id": id_ + 1, "n": n}, id_)
        case _:
            again = written[-random.randint(1, 4) :] if action == "again" else [(id_, n if action == "put" else None)]
            for one, value in again:
                put({"topic": topic, "id": one}, None if value is None else {"id": one, "n": value}, one)
                table[(topic, one)] = value
                if value is None:
                    del table[(topic, one)]
            written.extend(again)
