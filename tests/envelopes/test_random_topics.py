"""Random topics, many in one frame: tables and images compared with a plain Python model, for any batch boundaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from tests.envelopes.connector import RECORD, ROW, debezium_topic
from tests.envelopes.topics import Batch, Table, apply_images, arrow_batch, assert_same, frame, upsert_topic

from penstock.envelopes import (
    DebeziumState,
    Enveloped,
    contradictions,
    debezium,
    debezium_shape,
    debezium_upsert,
    keyed_shape,
    upsert,
)
from penstock.envelopes.arrow_images import debezium_upsert_images, upsert_images
from penstock.envelopes.messages import message_type
from penstock.model import GONE, TableName
from penstock.sources.kafka.apply.changes import materialize
from penstock.tables.contents import Contents, survey
from penstock.tables.fold import fold
from penstock.tables.log_tail import fold_small

TOPICS = 110
BATCHES = 3

# Topics are drawn from one seed and share a frame, so that Spark runs few jobs: shrinking would not help.
random_topics = settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def key_of(row: Any) -> tuple[int, int]:
    return row["topic"], row["id"]


def rejected_locations(result: Enveloped) -> set[tuple[int, int]]:
    found = result.rejected.collect()
    assert len({(one["partition"], one["offset"]) for one in found}) == len(found)
    return {(one["partition"], one["offset"]) for one in found}


def compare_after_each_batch(images: Iterable[Row], topics: Sequence[Sequence[Batch]], per_batch: int) -> None:
    """Compare the table with the reference after each batch."""
    images = list(images)
    table: Table = {}
    for number in range(BATCHES):
        table = apply_images(table, [one for one in images if one["_lsn"] // per_batch == number], key_of)
        expected = {key: n for topic in topics for key, n in topic[number].table.items()}
        assert table == expected


def all_messages(spark: SparkSession, topics: Sequence[Sequence[Batch]], **types: str) -> DataFrame:
    return frame(spark, [one for topic in topics for batch in topic for one in batch.messages], **types)


def all_rejected(topics: Sequence[Sequence[Batch]]) -> set[tuple[int, int]]:
    return {location for topic in topics for batch in topic for location in batch.rejected}


@random_topics
@given(seed=st.integers(0, 2**32))
def test_upsert(spark: SparkSession, seed: int) -> None:
    topics = [upsert_topic(Random(f"{seed} {topic}"), topic, BATCHES) for topic in range(TOPICS)]
    messages = all_messages(spark, topics)
    shape = keyed_shape(message_type(messages, "key"), message_type(messages, "value"))
    result = upsert(messages, shape)
    compare_after_each_batch(result.images.collect(), topics, 10)
    assert rejected_locations(result) == all_rejected(topics)
    images, schema = result.images, shape.schema(TableName("public", "t"))
    rows = fold(images, schema, survey(images)).filter(f"NOT {GONE}").collect()
    expected = {key: n for topic in topics for key, n in topic[-1].table.items()}
    assert {key_of(row): row["n"] for row in rows} == expected
    changes = materialize(result, schema)
    assert changes.few is not None
    few, _ = fold_small(changes.few, schema, Contents())
    assert {key_of(row): row["n"] for row in few.to_pylist() if not row[GONE]} == expected
    assert rejected_locations(changes.found) == all_rejected(topics)
    assert_same(result, upsert_images(arrow_batch(messages), schema))


@random_topics
@given(seed=st.integers(0, 2**32))
def test_debezium_upsert(spark: SparkSession, seed: int) -> None:
    topics = [debezium_topic(Random(f"{seed} {topic}"), topic, BATCHES) for topic in range(TOPICS)]
    messages = all_messages(spark, topics, value=RECORD)
    shape = debezium_shape(messages)
    result = debezium_upsert(messages, shape)
    compare_after_each_batch(result.images.collect(), topics, 1)
    assert rejected_locations(result) == all_rejected(topics)
    assert_same(result, debezium_upsert_images(arrow_batch(messages), shape.schema(TableName("public", "t"))))


@random_topics
@given(seed=st.integers(0, 2**32))
def test_debezium(spark: SparkSession, seed: int) -> None:
    topics = [debezium_topic(Random(f"{seed} {topic}"), topic, BATCHES) for topic in range(TOPICS)]
    state, all_images = DebeziumState(), list[Row]()
    table: Table = {}
    for number in range(BATCHES):
        batches = [topic[number] for topic in topics]
        messages = frame(spark, [one for batch in batches for one in batch.messages], value=RECORD).cache()
        shape = debezium_shape(messages)
        result = debezium(messages, shape, state, rows_of(spark, table))
        images = result.images.collect()
        few = materialize(result, shape.schema(TableName("public", "t"))).few
        assert few is not None
        assert [sort_key(one) for one in few.to_pylist()] == sorted(map(sort_key, images))
        table = apply_images(table, images, key_of)
        assert table == {key: n for batch in batches for key, n in batch.exactly_once.items()}
        assert counted((one["_image"], one["row"].asDict()) for one in images) == counted(
            image for batch in batches for image in batch.images
        )
        assert rejected_locations(result) == {location for batch in batches for location in batch.rejected}
        all_images += images
        state = DebeziumState.from_json(result.state.to_json())
        messages.unpersist()
    assert contradictions(
        spark.createDataFrame(all_images, result.images.schema), rows_of(spark, {}), debezium_shape(messages)
    ).isEmpty()


def sort_key(image: Any) -> tuple[Any, ...]:
    return image["_lsn"], image["_ordinal"], image["_image"], *(image["row"][name] for name in ("topic", "id", "n"))


def counted(images: Iterable[tuple[int, Any]]) -> Counter[tuple[int, tuple[Any, ...]]]:
    return Counter((kind, tuple(row.values())) for kind, row in images)


def rows_of(spark: SparkSession, table: Table) -> DataFrame:
    rows = [((topic, key, n),) for (topic, key), n in table.items()]
    return spark.createDataFrame(rows, f"row {ROW}").select("row.*")
