"""Ticks as read from the log: the offsets of a range of ticks, and the tick of a message."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from penstock.model import Image, image_schema
from penstock.sources.kafka.ticks import (
    OffsetRange,
    assignment_options,
    first_offsets,
    ranges,
    tick_bounds,
    tick_of,
    tick_row,
    tick_table,
    widened_offsets,
)

Vectors = Sequence[tuple[Sequence[int], Sequence[int]]]
EXAMPLE: Vectors = [([0, 0], [3, 0]), ([3, 0], [5, 2]), ([5, 2, 0], [5, 4, 1]), ([5, 4, 1], [9, 4, 6])]
"""The example in the docstring of the module."""


def logged(ticks: Vectors, after: int = 0, upto: int | None = None) -> list[pa.RecordBatch]:
    """Return ticks in a range, with positions from 1, as a log returns them, in several batches."""
    schema = image_schema(tick_table("t").table_schema().columns)
    rows = [
        {"_lsn": n, "_ordinal": 0, "_image": int(Image.INSERTED), "_xid": n, "_committed_at": 0, "row": row}
        for n, row in enumerate((tick_row(*tick).to_pylist()[0] for tick in ticks), 1)
        if after < n <= (len(ticks) if upto is None else upto)
    ]
    whole = pa.RecordBatch.from_pylist(rows, schema=schema)
    return [whole.slice(at, 3) for at in range(0, len(rows), 3)]


def random_ticks(seed: int, length: int) -> Vectors:
    """Return ticks of a topic that gains messages and partitions."""
    draw = random.Random(seed)
    ticks: list[tuple[Sequence[int], Sequence[int]]] = []
    at: tuple[int, ...] = tuple(draw.randrange(5) for _ in range(draw.randint(1, 3)))
    for _ in range(length):
        at = widened_offsets(at, len(at) + (draw.random() < 0.1))
        upto = tuple(offset + draw.choice([0, 0, 1, 7]) for offset in at)
        ticks.append((at, upto))
        at = upto
    return ticks


def test_example_of_the_docstring() -> None:
    assert ranges("t", logged(EXAMPLE, 1)) == [
        OffsetRange("t", 0, 3, 9),
        OffsetRange("t", 1, 0, 4),
        OffsetRange("t", 2, 0, 6),
    ]
    assert ranges("t", logged(EXAMPLE, 0, 1)) == [OffsetRange("t", 0, 0, 3)]
    assert ranges("t", []) == []
    assert first_offsets(logged(EXAMPLE, 2)) == (5, 2, 0)
    assert first_offsets([]) is None


@pytest.mark.parametrize("seed", range(10))
def test_adjacent_ranges_are_contiguous_and_each_message_is_in_one_tick(seed: int) -> None:
    ticks = random_ticks(seed, 12)
    messages = {
        (n, partition, offset)
        for n, (first, last) in enumerate(ticks, 1)
        for partition, (begin, end) in enumerate(zip(first, last, strict=True))
        for offset in range(begin, end)
    }
    for after, upto in itertools.combinations(range(len(ticks) + 1), 2):
        within = {(partition, offset): n for n, partition, offset in messages if after < n <= upto}
        read = logged(ticks, after, upto)
        found = ranges("t", read)
        assert {(each.partition, offset) for each in found for offset in range(each.first, each.last)} == set(within)
        shuffled = list(within)
        random.Random(seed).shuffle(shuffled)
        partitions = np.array([partition for partition, _ in shuffled], np.int32)
        found_ticks = tick_of(tick_bounds(read), partitions, np.array([offset for _, offset in shuffled], np.int64))
        assert found_ticks.to_pylist() == [within[message] for message in shuffled]


def test_tick_bounds_table() -> None:
    assert tick_bounds(logged(EXAMPLE, 1)).to_pylist() == [
        {"partition": 0, "first": 3, "last": 5, "tick": 2, "partitions": 2},
        {"partition": 1, "first": 0, "last": 2, "tick": 2, "partitions": 2},
        {"partition": 1, "first": 2, "last": 4, "tick": 3, "partitions": 3},
        {"partition": 2, "first": 0, "last": 1, "tick": 3, "partitions": 3},
        {"partition": 0, "first": 5, "last": 9, "tick": 4, "partitions": 3},
        {"partition": 2, "first": 1, "last": 6, "tick": 4, "partitions": 3},
    ]
    assert tick_bounds([]).num_rows == 0


@pytest.mark.parametrize(("partition", "offset"), [(0, 2), (0, 9), (1, 4), (3, 0)])
def test_message_outside_all_ticks_is_rejected(partition: int, offset: int) -> None:
    with pytest.raises(ValueError, match=f"partition {partition} is in no tick"):
        tick_of(tick_bounds(logged(EXAMPLE, 1)), np.array([partition], np.int32), np.array([offset], np.int64))


def test_ranges_as_spark_options() -> None:
    read = [OffsetRange("a", 0, 3, 9), OffsetRange("a", 2, 0, 6), OffsetRange("b", 1, 5, 6)]
    options = {"kafka.bootstrap.servers": "k1:9092", "subscribe": "a", "startingTimestamp": "12"}
    assigned = assignment_options(options, read)
    assert set(assigned) == {"kafka.bootstrap.servers", "assign", "startingOffsets", "endingOffsets"}
    assert json.loads(assigned["assign"]) == {"a": [0, 2], "b": [1]}
    assert json.loads(assigned["startingOffsets"]) == {"a": {"0": 3, "2": 0}, "b": {"1": 5}}
    assert json.loads(assigned["endingOffsets"]) == {"a": {"0": 9, "2": 6}, "b": {"1": 6}}
