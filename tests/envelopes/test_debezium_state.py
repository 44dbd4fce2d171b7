"""The state of ENVELOPE DEBEZIUM: its size, its serialization, and that merging is associative."""

from __future__ import annotations

from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.envelopes.connector import RECORD

from penstock.envelopes import DebeziumState, Progress, debezium, debezium_shape
from penstock.errors import DefiniteError, UsageError

KEYS = 1_000


def position(number: int) -> str:
    return f"{number:040d}"


def digest(number: int) -> str:
    return f"{number:032x}"


def after(updates: int, batch: int) -> DebeziumState:
    """Return the state after a number of updates of the keys of one partition, in order."""
    state = DebeziumState()
    for start in range(0, updates, batch):
        end = min(start + batch, updates)
        key, time = digest((end - 1) % KEYS), 1_700_000_000_000 + end
        read = Progress(snapshot="", highest=position(end), at_highest=(key,), latest=time)
        state = state.then([(0, read)])
    return state


def test_state_size_does_not_depend_on_the_number_of_updates() -> None:
    few, many = after(10_000, 1_000), after(1_000_000, 1_000)
    assert few != many
    assert len(few.to_json()) == len(many.to_json())


@pytest.mark.deep
def test_state_size_after_real_records(spark: SparkSession) -> None:
    sizes = [len(state_of_updates(spark, updates).to_json()) for updates in (10_000, 200_000)]
    assert sizes[0] == sizes[1] < 1_000


def state_of_updates(spark: SparkSession, updates: int) -> DebeziumState:
    """Read updates of the keys in two partitions, each key in one of them."""
    number = F.col("id")
    key = F.struct(F.lit(0).alias("topic"), (number % KEYS).cast("int").alias("id"))
    row = F.struct("key.topic", "key.id", number.cast("int").alias("n"))
    lsn = number + 1_000_000_000
    place = {
        "version": F.lit("3.3.1.Final"),
        "connector": F.lit("postgresql"),
        "snapshot": F.lit("false"),
        "ts_ms": lsn + 1_700_000_000_000,
        "sequence": F.format_string('["%d","%d"]', lsn - 1, lsn),
        "lsn": lsn,
    }
    parts = {**place, "file": F.lit(None), "pos": F.lit(None), "row": F.lit(None)}
    source = F.struct(*(value.alias(name) for name, value in parts.items()))
    record = F.struct(row.alias("before"), row.alias("after"), source.alias("source"), F.lit("u").alias("op"))
    messages = spark.range(updates).select(key.alias("key"), "id")
    messages = messages.select(
        "key",
        record.cast(RECORD).alias("value"),
        F.lit(False).alias("tombstone"),
        F.lit(1).cast("bigint").alias("_tick"),
        (number % 2).cast("int").alias("partition"),
        number.alias("offset"),
        F.current_timestamp().alias("timestamp"),
        F.lit(None).cast("string").alias("problem"),
    )
    state = debezium(messages, debezium_shape(messages), DebeziumState()).state
    assert state.partitions[1].highest == f"{updates + 999_999_998:020d}{updates + 999_999_999:020d}"
    return state


def test_merging_progress_is_associative() -> None:
    random = Random(7)
    facts = [
        Progress(
            snapshot=random.choice([None, "", position(5)]),
            highest=random.choice([None, position(random.randint(1, 3))]),
            latest=random.choice([None, random.randint(1, 9)]),
            behind=random.random() < 0.5,
            at_highest=(digest(random.randint(1, 3)),),
        )
        for _ in range(200)
    ]
    for one, two, three in zip(facts, facts[1:], facts[2:], strict=False):
        assert one.then(two).then(three) == one.then(two.then(three))


def test_state_round_trips_through_json() -> None:
    state = DebeziumState().then([(3, Progress(highest=position(1), latest=5)), (0, Progress(snapshot=""))])
    assert DebeziumState.from_json(state.to_json()) == state
    assert state.has_open_snapshot
    assert not state.then([(0, Progress(highest=position(2)))]).has_open_snapshot


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"partitions":{"x":{}}}',
        '{"partitions":{"0":{"highest":7}}}',
        '{"partitions":{"0":{"highest":"7"}}}',
        '{"partitions":{"0":{"more":1}}}',
    ],
)
def test_invalid_state_is_rejected(text: str) -> None:
    with pytest.raises(DefiniteError, match="could not parse"):
        DebeziumState.from_json(text)


def test_keys_are_required_during_a_snapshot(spark: SparkSession) -> None:
    open_snapshot = DebeziumState().then([(0, Progress(snapshot=""))])
    columns = f"key struct<topic:int,id:int>, value {RECORD}, tombstone boolean"
    with pytest.raises(UsageError, match="Start over"):
        debezium(spark.createDataFrame([], columns), debezium_shape(spark.createDataFrame([], columns)), open_snapshot)
