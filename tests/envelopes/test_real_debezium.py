"""Topics of a real Debezium, which was killed and repeats itself: both envelopes come to what Postgres has."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.envelopes.recorded import Message, Topics, recorded

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.envelopes import (
    DebeziumState,
    broken,
    debezium,
    debezium_shape,
    debezium_upsert,
    with_meant,
)
from penstock.formats import (
    AvroFormat,
    JsonFormat,
    Registry,
    RegistryAddress,
    ResolvedFormat,
    decode_batch,
    resolve,
)
from penstock.model import Image, TableName
from penstock.tables.contents import survey
from penstock.tables.fold import fold
from penstock.tables.overlay import overlay
from penstock.testing.debezium import Converter
from penstock.testing.kafka import start_kafka
from penstock.testing.postgres import start_postgres
from penstock.testing.registry import start_registry

NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
PARTS = ("key", "value")


@dataclass(frozen=True)
class World:
    """What Debezium wrote, what Postgres has in the end, and where schemas are."""

    topics: Topics
    postgres: EmbeddedPostgres
    registry: str

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        return self.postgres.execute(f"SELECT {columns} FROM {table}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with (
        start_postgres(fsync=False) as postgres,
        start_kafka(folder / "kafka") as broker,
        start_registry(folder / "registry") as registry,
    ):
        topics = recorded(folder, postgres, broker, registry.url)
        broker.stop()
        yield World(topics, postgres, registry.url)


@pytest.fixture(params=list(Converter), ids=lambda converter: converter.name.lower())
def converter(request: pytest.FixtureRequest) -> Converter:
    found: Converter = request.param
    return found


def decoded(spark: SparkSession, world: World, converter: Converter, table: str) -> DataFrame:
    """Return the messages of a topic as envelopes take them, in two ticks."""
    told = world.topics[converter, table]
    raw = {part: pa.array([getattr(one, part) for one in told], pa.binary()) for part in PARTS}
    formats = {part: _format(world, converter, table, part, told) for part in PARTS}
    done = {part: decode_batch(raw[part], formats[part]) for part in PARTS}
    count = len(told)
    columns = pa.table(
        {
            "key": done["key"].rows,
            "value": done["value"].rows,
            "tombstone": pa.array([one.value is None for one in told]),
            "_tick": pa.array([1 + 2 * place // count for place in range(count)], pa.int64()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array([one.offset for one in told], pa.int64()),
            "timestamp": pa.array([NOON] * count, pa.timestamp("us", "UTC")),
            "problem": done["value"].problems,
        }
    )
    assert columns.column("problem").null_count == done["key"].problems.null_count == count
    frame = spark.createDataFrame(columns)
    for part in PARTS:
        frame = with_meant(frame, part, formats[part].meanings)
    return frame.localCheckpoint()


def _format(world: World, converter: Converter, table: str, part: str, told: list[Message]) -> ResolvedFormat:
    if converter is not Converter.AVRO:
        return resolve(JsonFormat(), sample=[text for one in told if (text := getattr(one, part)) is not None])
    address = RegistryAddress(url=world.registry)
    subject = f"{converter.name.lower()}.{table}-{part}"
    return resolve(AvroFormat(registry=address), subject=subject, registry=Registry(address))


def after(images: DataFrame, shape: Any, table: str) -> DataFrame:
    """Return the table that images make of an empty one."""
    schema = shape.schema(TableName.parse(table))
    contents = survey(images)
    empty = images.sparkSession.createDataFrame([], shape.columns)
    return overlay(empty, fold(images, schema, contents), schema, contents)


def test_exactly_once(spark: SparkSession, world: World, converter: Converter) -> None:
    messages = decoded(spark, world, converter, "public.moved")
    shape = debezium_shape(messages)
    state, rows = DebeziumState(), spark.createDataFrame([], shape.columns)
    images = None
    for tick in (1, 2):
        made = debezium(messages.filter(F.col("_tick") == tick), shape, state, rows)
        new = made.images.localCheckpoint()
        assert made.refused.collect() == []
        assert broken(new, rows, shape).collect() == []
        images = new if images is None else images.union(new)
        rows = after(images, shape, "public.moved").localCheckpoint()
        state = DebeziumState.from_json(made.state.to_json())
    assert images is not None
    taken = images.filter(F.col("_image") != int(Image.BEFORE)).count()
    assert taken < messages.filter(~F.col("tombstone")).count(), "Debezium repeats itself, and that is dropped"
    check(rows, world, "public.moved", "id, n, text")


def test_upsert(spark: SparkSession, world: World, converter: Converter) -> None:
    messages = decoded(spark, world, converter, "public.typed")
    shape = debezium_shape(messages)
    made = debezium_upsert(messages, shape)
    assert made.refused.collect() == []
    # Plain JSON does not tell what numbers and texts mean: there, only the others are as in Postgres.
    columns = PLAIN if converter is Converter.JSON else f"{PLAIN}, {MEANT}"
    check(after(made.images, shape, "public.typed"), world, "public.typed", columns)


PLAIN = "id, part, flag, small, big, single, double, words, own::text, doc::text, numbers, names"
MEANT = "price, trim_scale(free)::text, data, day, clock::text, local, local3, moment AT TIME ZONE 'UTC', times, prices"


def check(rows: DataFrame, world: World, table: str, columns: str) -> None:
    """Hold columns of the rows against those of Postgres."""
    if "moment" in rows.columns and "moment" in columns:
        rows = rows.withColumn("moment", F.col("moment").cast("timestamp_ntz"))  # the session's zone is UTC
    found = Counter(map(_plain, rows.select(*_names(columns)).collect()))
    assert found == Counter(map(_plain, world.rows(table, columns)))


def _names(columns: str) -> list[str]:
    return [re.sub(r"trim_scale|[()]|::text| AT TIME.*", "", column).strip() for column in columns.split(",")]


def _plain(row: Any) -> str:
    return repr([_value(value) for value in row])


def _value(value: Any) -> Any:
    match value:
        case list():
            return [_value(item) for item in value]
        case Decimal():
            return format(value.normalize(), "f")
        case bytes() | bytearray():
            return bytes(value)
        case str() if value.startswith("{"):
            return json.loads(value)
    return value
