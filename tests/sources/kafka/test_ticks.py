"""Ticks as the log gives them: which offsets a range of them stands for, and which tick a message is of."""

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
    assigned,
    first_offsets,
    ranges,
    tick_bounds,
    tick_of,
    tick_row,
    tick_table,
    widened_offsets,
)

Vectors = Sequence[tuple[Sequence[int], Sequence[int]]]
SHOWN: Vectors = [([0, 0], [3, 0]), ([3, 0], [5, 2]), ([5, 2, 0], [5, 4, 1]), ([5, 4, 1], [9, 4, 6])]
"""The picture in the docstring of the module."""


def logged(ticks: Vectors, after: int = 0, upto: int | None = None) -> list[pa.RecordBatch]:
    """Return ticks that have positions from 1 on, in a range, as a log gives them: some in each batch."""
    schema = image_schema(tick_table("t").table_schema().columns)
    rows = [
        {"_lsn": n, "_ordinal": 0, "_image": int(Image.INSERTED), "_xid": n, "_committed_at": 0, "row": row}
        for n, row in enumerate((tick_row(*tick).to_pylist()[0] for tick in ticks), 1)
        if after < n <= (len(ticks) if upto is None else upto)
    ]
    whole = pa.RecordBatch.from_pylist(rows, schema=schema)
    return [whole.slice(at, 3) for at in range(0, len(rows), 3)]


def wandering(seed: int, length: int) -> Vectors:
    """Make ticks of a topic that gains messages and partitions."""
    draw = random.Random(seed)
    ticks: list[tuple[Sequence[int], Sequence[int]]] = []
    at: tuple[int, ...] = tuple(draw.randrange(5) for _ in range(draw.randint(1, 3)))
    for _ in range(length):
        at = widened_offsets(at, len(at) + (draw.random() < 0.1))
        upto = tuple(offset + draw.choice([0, 0, 1, 7]) for offset in at)
        ticks.append((at, upto))
        at = upto
    return ticks


def test_the_picture() -> None:
    assert ranges("t", logged(SHOWN, 1)) == [
        OffsetRange("t", 0, 3, 9),
        OffsetRange("t", 1, 0, 4),
        OffsetRange("t", 2, 0, 6),
    ]
    assert ranges("t", logged(SHOWN, 0, 1)) == [OffsetRange("t", 0, 0, 3)]
    assert ranges("t", []) == []
    assert first_offsets(logged(SHOWN, 2)) == (5, 2, 0)
    assert first_offsets([]) is None


@pytest.mark.parametrize("seed", range(10))
def test_neighbouring_ranges_make_the_whole_one_and_each_message_is_of_one_tick(seed: int) -> None:
    ticks = wandering(seed, 12)
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
        asked = list(within)
        random.Random(seed).shuffle(asked)
        partitions = np.array([partition for partition, _ in asked], np.int32)
        told = tick_of(tick_bounds(read), partitions, np.array([offset for _, offset in asked], np.int64))
        assert told.to_pylist() == [within[message] for message in asked]


def test_which_tick_as_a_frame() -> None:
    assert tick_bounds(logged(SHOWN, 1)).to_pylist() == [
        {"partition": 0, "first": 3, "last": 5, "tick": 2},
        {"partition": 1, "first": 0, "last": 2, "tick": 2},
        {"partition": 1, "first": 2, "last": 4, "tick": 3},
        {"partition": 2, "first": 0, "last": 1, "tick": 3},
        {"partition": 0, "first": 5, "last": 9, "tick": 4},
        {"partition": 2, "first": 1, "last": 6, "tick": 4},
    ]
    assert tick_bounds([]).num_rows == 0


@pytest.mark.parametrize(("partition", "offset"), [(0, 2), (0, 9), (1, 4), (3, 0)])
def test_a_message_of_no_tick_is_refused(partition: int, offset: int) -> None:
    with pytest.raises(ValueError, match=f"partition {partition} is in no tick"):
        tick_of(tick_bounds(logged(SHOWN, 1)), np.array([partition], np.int32), np.array([offset], np.int64))


def test_ranges_as_options_of_spark() -> None:
    read = [OffsetRange("a", 0, 3, 9), OffsetRange("a", 2, 0, 6), OffsetRange("b", 1, 5, 6)]
    options = {"kafka.bootstrap.servers": "k1:9092", "subscribe": "a", "startingTimestamp": "12"}
    told = assigned(options, read)
    assert set(told) == {"kafka.bootstrap.servers", "assign", "startingOffsets", "endingOffsets"}
    assert json.loads(told["assign"]) == {"a": [0, 2], "b": [1]}
    assert json.loads(told["startingOffsets"]) == {"a": {"0": 3, "2": 0}, "b": {"1": 5}}
    assert json.loads(told["endingOffsets"]) == {"a": {"0": 9, "2": 6}, "b": {"1": 6}}
