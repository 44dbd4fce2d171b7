"""Topics of a killed Debezium with repeated messages: both envelopes produce the rows of Postgres."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.debezium.conftest import Recordings
from tests.debezium.histories import PLAIN
from tests.debezium.postgres_rows import require_rows
from tests.debezium.recording import Message
from tests.debezium.replay import Replay

from penstock.envelopes import (
    DebeziumState,
    contradictions,
    debezium,
    debezium_shape,
    debezium_upsert,
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
from penstock.testing.registry import SchemaRegistry

NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
PARTS = ("key", "value")


def every_converter(fast: Converter) -> pytest.MarkDecorator:
    """Run a test with each converter; all but one of them in the deep tier."""
    deep = {each: () if each is fast else pytest.mark.deep for each in Converter}
    return pytest.mark.parametrize(
        "converter", [pytest.param(each, marks=marks, id=each.name.lower()) for each, marks in deep.items()]
    )


def decoded(spark: SparkSession, replay: Replay, registry: str, table: str) -> DataFrame:
    """Return the messages of a topic as input for an envelope, in two ticks."""
    messages = replay.topics[table].messages
    raw = {part: pa.array([getattr(one, part) for one in messages], pa.binary()) for part in PARTS}
    formats = {part: _format(replay, registry, table, part, messages) for part in PARTS}
    done = {part: decode_batch(raw[part], formats[part]) for part in PARTS}
    count = len(messages)
    columns = pa.table(
        {
            "key": done["key"].rows,
            "value": done["value"].rows,
            "tombstone": pa.array([one.value is None for one in messages]),
            "_tick": pa.array([1 + 2 * place // count for place in range(count)], pa.int64()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([NOON] * count, pa.timestamp("us", "UTC")),
            "problem": done["value"].problems,
        }
    )
    assert columns.column("problem").null_count == done["key"].problems.null_count == count
    return spark.createDataFrame(columns).localCheckpoint()


def _format(replay: Replay, registry: str, table: str, part: str, messages: tuple[Message, ...]) -> ResolvedFormat:
    if replay.converter is not Converter.AVRO:
        return resolve(JsonFormat(), sample=[text for one in messages if (text := getattr(one, part)) is not None])
    address = RegistryAddress(url=registry)
    return resolve(AvroFormat(registry=address), subject=f"{replay.name(table)}-{part}", registry=Registry(address))


def after(images: DataFrame, shape: Any, table: str) -> DataFrame:
    """Return the table after applying images to an empty one."""
    schema = shape.schema(TableName.parse(table))
    contents = survey(images)
    empty = images.sparkSession.createDataFrame([], shape.columns)
    return overlay(empty, fold(images, schema, contents), schema, contents)


@every_converter(fast=Converter.JSON)
def test_exactly_once(
    spark: SparkSession, recordings: Recordings, registry: SchemaRegistry, converter: Converter
) -> None:
    recording = recordings["types"]
    messages = decoded(spark, Replay(recording, converter, registry), registry.url, "public.moved")
    shape = debezium_shape(messages)
    state, rows = DebeziumState(), spark.createDataFrame([], shape.columns)
    images = None
    for tick in (1, 2):
        result = debezium(messages.filter(F.col("_tick") == tick), shape, state, rows)
        new = result.images.localCheckpoint()
        assert result.rejected.collect() == []
        assert contradictions(new, rows, shape).collect() == []
        images = new if images is None else images.union(new)
        rows = after(images, shape, "public.moved").localCheckpoint()
        state = DebeziumState.from_json(result.state.to_json())
    assert images is not None
    image_count = images.filter(F.col("_image") != int(Image.BEFORE)).count()
    assert image_count < messages.filter(~F.col("tombstone")).count(), "repeated messages are dropped"
    require_rows(rows, recording, "public.moved")


@every_converter(fast=Converter.AVRO)
def test_upsert(spark: SparkSession, recordings: Recordings, registry: SchemaRegistry, converter: Converter) -> None:
    recording = recordings["types"]
    messages = decoded(spark, Replay(recording, converter, registry), registry.url, "public.typed")
    shape = debezium_shape(messages)
    result = debezium_upsert(messages, shape)
    assert result.rejected.collect() == []
    columns = PLAIN if converter is Converter.JSON else None
    # In one plan, Spark's constraint propagation over this many columns takes minutes.
    images = result.images.localCheckpoint()
    require_rows(after(images, shape, "public.typed"), recording, "public.typed", columns)
