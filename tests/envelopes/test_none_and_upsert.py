"""ENVELOPE NONE and UPSERT, case by case, and the columns of images. Random topics: `test_random_topics`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType, TimestampType
from tests.envelopes.topics import NOON, Message, arrow_batch, assert_same, fields, frame

from penstock.envelopes import Shape, append, keyed_shape, upsert, value_shape
from penstock.envelopes.arrow_images import append_images, upsert_images
from penstock.envelopes.messages import message_type
from penstock.errors import UsageError
from penstock.model import Image, TableName, image_schema

KEY = {"topic": 0, "id": 1}
INT = IntegerType()


def test_rows_are_appended(spark: SparkSession) -> None:
    messages = [
        Message(None, {"id": 1, "n": 1}, partition=1, offset=7, tick=3),
        Message(KEY, {"id": 1, "n": 1}, partition=0, offset=2**43, tick=3),
        Message(None, {"id": 2, "n": None}, partition=2**18, offset=0, tick=3),
        Message(KEY, None, partition=2, offset=1),
        Message(KEY, None, partition=2, offset=2, problem="it is corrupt"),
        Message(KEY, {"id": 3, "n": 1}, partition=2**19, offset=3),
        Message(KEY, {"id": 4, "n": 1}, partition=2, offset=2**44),
    ]
    read = frame(spark, messages)
    shape = value_shape(message_type(read, "value"))
    result = append(read, shape)
    images = result.images.orderBy("_lsn", "_ordinal").collect()
    assert [tuple(one["row"]) for one in images] == [(1, 1), (1, 1), (2, None)]
    assert {(one["_lsn"], one["_image"], one["_xid"], one["_unchanged"]) for one in images} == {
        (3, Image.INSERTED, 0, None)
    }
    assert {one["_committed_at"].timestamp() for one in images} == {NOON.timestamp()}
    rejected = {(one["partition"], one["offset"]): one["problem"] for one in result.rejected.collect()}
    assert "ENVELOPE UPSERT" in rejected[2, 1]
    assert rejected[2, 2] == "it is corrupt"
    assert "exceeds" in rejected[2**19, 3]
    assert "exceeds" in rejected[2, 2**44]
    assert len(rejected) == 4
    assert_same(result, append_images(arrow_batch(read), shape.schema(TableName("public", "t"))))


def test_images_have_the_columns_of_the_model(spark: SparkSession) -> None:
    read = frame(spark, [])
    shape = keyed_shape(message_type(read, "key"), message_type(read, "value"))
    expected = from_arrow_schema(image_schema(shape.schema(TableName("public", "t")).columns))
    found = upsert(read, shape).images.schema
    assert [(one.name, one.dataType.simpleString()) for one in found] == [
        (one.name, one.dataType.simpleString()) for one in expected
    ]


def test_row_consists_of_key_and_value(spark: SparkSession) -> None:
    messages = [Message(KEY, {"id": 1, "n": 5}, offset=0), Message(KEY, None, offset=1)]
    read = frame(spark, messages)
    shape = keyed_shape(message_type(read, "key"), message_type(read, "value"))
    assert shape.columns.names == ["topic", "id", "n"]
    assert shape.key == ("topic", "id")
    images = upsert(read, shape).images.orderBy("_ordinal").collect()
    assert [(one["_image"], tuple(one["row"])) for one in images] == [
        (Image.UPDATED, (0, 1, 5)),
        (Image.DELETED_KEY, (0, 1, None)),
    ]


def test_rejections_have_a_hint(spark: SparkSession) -> None:
    messages = [
        Message(None, {"id": 1, "n": 5}, offset=0),
        Message(None, None, offset=1),
        Message({"topic": 0, "id": None}, {"id": None, "n": 5}, offset=2),
        Message(KEY, {"id": 2, "n": 5}, offset=3),
        Message(KEY, {"id": 1, "n": 5}, offset=4),
    ]
    read = frame(spark, messages)
    shape = keyed_shape(message_type(read, "key"), message_type(read, "value"))
    result = upsert(read, shape)
    assert_same(result, upsert_images(arrow_batch(read), shape.schema(TableName("public", "t"))))
    rejected = {one["offset"]: one["problem"] for one in result.rejected.collect()}
    assert "write the topic with keys" in rejected[0]
    assert "write the topic with keys" in rejected[1]
    assert "'id'" in rejected[2]
    assert "different values" in rejected[3]
    assert set(rejected) == {0, 1, 2, 3}
    assert result.images.count() == 1


def test_unusual_names_are_columns(spark: SparkSession) -> None:
    key, value = "struct<`a.b`:int>", "struct<`c``d`:int,`e f`:string>"
    read = frame(spark, [Message({"a.b": 1}, {"c`d": 2, "e f": "x"})], key, value)
    shape = keyed_shape(message_type(read, "key"), message_type(read, "value"))
    (image,) = upsert(read, shape).images.collect()
    assert image["row"].asDict() == {"a.b": 1, "c`d": 2, "e f": "x"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (fields(id=INT), fields(id=LongType(), n=INT), "different types in keys"),
        (fields(id=INT), fields(ID=INT), "same name in Spark"),
        (fields(id=MapType(StringType(), INT)), fields(n=INT), "contains a map"),
        (fields(), fields(n=INT), "KEY FORMAT"),
    ],
)
def test_invalid_key_and_value_are_rejected(key: StructType, value: StructType, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        keyed_shape(key, value)


def test_shape_gives_a_table_schema() -> None:
    shape: Shape = keyed_shape(fields(id=INT), fields(at=TimestampType(), tags=ArrayType(StringType())))
    schema = shape.schema(TableName("public", "t"))
    assert schema.columns.names == ["id", "at", "tags"]
    assert str(schema.columns.field("at").type) == "timestamp[us, tz=UTC]"
    assert schema.key == ("id",)
