"""Ticks: positions of a Kafka source. A tick makes messages up to certain offsets visible; messages stay in Kafka.

::

    position      1           2           3           4
    from     [0, 0]      [3, 0]   [5, 2, 0]   [5, 4, 1]       `from` is the previous `to`; a partition that
    to       [3, 0]      [5, 2]   [5, 4, 1]   [9, 4, 6]       was added starts at 0

    (1, 4]   ─▶ first `from`, last `to` ─▶ partition 0: 3 … 9,  1: 0 … 4,  2: 0 … 6     (the end is exclusive)

A tick is one position of the source's log. For each of its topics the log has a table (`tick_table`), with a row for
each tick in which that topic moved. Consecutive ticks of a topic have no gap. So the first and the last tick of a range
determine the messages to read, regardless of the number of ticks between them and of the history removed before it:
`from` of the first tick after a base is where that base ends.

Within a partition, messages are ordered by offset, and the order of ticks never contradicts it. Messages of *different*
partitions are ordered by their ticks only. If a key occurs in several partitions (chosen by the producer, or because
partitions were added), `tick_bounds` determines the tick of a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.interface import ChangeLogReader
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.row_tables import RowTable

__all__ = [
    "GROUP_MESSAGES",
    "OffsetRange",
    "apply_lease_name",
    "assignment_options",
    "bounds_ranges",
    "first_offsets",
    "last_tick_within",
    "ranges",
    "ranges_within",
    "single_partition_ticks",
    "tick_bounds",
    "tick_groups",
    "tick_of",
    "tick_row",
    "tick_table",
    "widened_offsets",
]

_SCHEMA = "penstock_ticks"
GROUP_MESSAGES = 10_000
"""How many messages are read, sorted and decoded at a time, unless one tick has more."""
_TAKEN = "messages of "
_COLUMNS = pa.schema([("from", pa.list_(pa.int64())), ("to", pa.list_(pa.int64()))])
_PLACES = [("partition", pa.int32()), ("first", pa.int64()), ("last", pa.int64()), ("tick", pa.int64())]
_BOUNDS = pa.schema([*_PLACES, ("partitions", pa.int32())])


class OffsetRange(NamedTuple):
    """Messages of one partition, from the offset `first` up to `last` (exclusive)."""

    topic: str
    partition: int
    first: int
    last: int


def tick_table(topic: str) -> RowTable:
    """Return the table of a topic's ticks."""
    return RowTable.of(TableName(_SCHEMA, topic), _COLUMNS)


def apply_lease_name(topic: str) -> str:
    """Return the name of the lease with which apply records its progress in the messages of a topic."""
    return f"{_TAKEN}{topic}"


def tick_row(first: Sequence[int], last: Sequence[int]) -> pa.RecordBatch:
    """Return the row of a tick, by partition."""
    return pa.RecordBatch.from_pydict({"from": [list(first)], "to": [list(last)]}, schema=_COLUMNS)


def widened_offsets(offsets: Sequence[int], partitions: int) -> tuple[int, ...]:
    """Return offsets by partition, with 0 for partitions that were added."""
    return (*offsets, *[0] * (partitions - len(offsets)))


def first_offsets(ticks: Iterable[pa.RecordBatch]) -> tuple[int, ...] | None:
    """Return the start offsets of the first tick, by partition; None if there is no tick."""
    first = next((batch for batch in ticks if len(batch)), None)
    return None if first is None else tuple(_vectors(first, "from")[0].as_py())


def ranges(topic: str, ticks: Iterable[pa.RecordBatch]) -> list[OffsetRange]:
    """Return the offset ranges that the ticks of a log range cover; partitions without messages are omitted."""
    batches = [batch for batch in ticks if len(batch)]
    if not batches:
        return []
    upto = _vectors(batches[-1], "to")[-1].as_py()
    begun = widened_offsets(_vectors(batches[0], "from")[0].as_py(), len(upto))
    bounds = enumerate(zip(begun, upto, strict=True))
    return [OffsetRange(topic, number, first, last) for number, (first, last) in bounds if first < last]


def ranges_within(reader: ChangeLogReader, topic: str, after: Lsn, upto: Lsn) -> list[OffsetRange]:
    """Return the offset ranges in (after, upto]; only the first and the last tick are read from the log."""
    extent = reader.extent(tick_table(topic).name, after, upto)
    if len(extent.chunks) > 2:  # each tick is one chunk
        extent = replace(extent, chunks=(extent.chunks[0], extent.chunks[-1]))
    return ranges(topic, reader.read(extent))


def assignment_options(options: Mapping[str, str], read: Sequence[OffsetRange]) -> dict[str, str]:
    """Return Spark Kafka options (from `spark_options`) restricted to these offset ranges."""
    assert read, "Spark cannot read an empty assignment"
    return {
        **{name: value for name, value in options.items() if not name.startswith(("subscribe", "starting", "ending"))},
        "assign": json.dumps({topic: sorted(offsets) for topic, offsets in _by_topic(read, "partition").items()}),
        "startingOffsets": json.dumps(_by_topic(read, "first")),
        "endingOffsets": json.dumps(_by_topic(read, "last")),
    }


def _by_topic(read: Sequence[OffsetRange], field: str) -> dict[str, dict[int, int]]:
    by_topic: dict[str, dict[int, int]] = {}
    for each in read:
        by_topic.setdefault(each.topic, {})[each.partition] = getattr(each, field)
    return by_topic


def tick_bounds(ticks: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the offsets of each tick: `partition`, `first`, `last` (exclusive) and `tick`, its position.

    `partitions` is the number of partitions that the topic had at the tick. Each message of the range is in exactly one
    row, so the table can be joined to messages. Rows are in tick order.
    """
    return pa.concat_tables([_BOUNDS.empty_table(), *[pa.Table.from_batches([_moved(batch)]) for batch in ticks]])


def _moved(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Flatten the vectors of ticks; partitions without messages are omitted."""
    first, last = _vectors(batch, "from"), _vectors(batch, "to")
    parents = pc.list_parent_indices(last).to_numpy()
    sizes = pc.list_value_length(last).to_numpy()
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    numbers = (np.arange(len(parents)) - begins).astype(np.int32)
    ticks = batch.column("_lsn").to_numpy()[parents]
    counts = sizes[parents].astype(np.int32)
    columns = [pa.array(numbers), pc.list_flatten(first), pc.list_flatten(last), pa.array(ticks), pa.array(counts)]
    return pa.RecordBatch.from_arrays(columns, schema=_BOUNDS).filter(pc.less(columns[1], columns[2]))


def bounds_ranges(topic: str, bounds: pa.Table) -> list[OffsetRange]:
    """Return the offset range of each partition in `bounds`; consecutive ticks have no gap."""
    merged = bounds.group_by("partition").aggregate([("first", "min"), ("last", "max")]).sort_by("partition")
    columns = (merged.column(name).to_pylist() for name in ("partition", "first_min", "last_max"))
    return [OffsetRange(topic, *each) for each in zip(*columns, strict=True)]


def tick_groups(bounds: pa.Table) -> list[tuple[Lsn, Lsn, int]]:
    """Divide ticks into groups of at most `GROUP_MESSAGES`, and at least one tick: first and last tick, messages."""
    ticks, places = np.unique(bounds.column("tick").to_numpy(), return_inverse=True)
    sizes = np.bincount(places, bounds.column("last").to_numpy() - bounds.column("first").to_numpy()).astype(np.int64)
    groups: list[tuple[Lsn, Lsn, int]] = []
    for tick, size in zip(ticks.tolist(), sizes.tolist(), strict=True):
        if groups and groups[-1][2] + size <= GROUP_MESSAGES:
            groups[-1] = (groups[-1][0], Lsn(tick), groups[-1][2] + size)
        else:
            groups.append((Lsn(tick), Lsn(tick), size))
    return groups


def last_tick_within(bounds: pa.Table, most: int) -> Lsn:
    """Return the last tick up to which there are at most `most` messages, but at least the first tick."""
    ticks, places = np.unique(bounds.column("tick").to_numpy(), return_inverse=True)
    sizes = bounds.column("last").to_numpy() - bounds.column("first").to_numpy()
    total = np.cumsum(np.bincount(places, weights=sizes))
    fitting = int(np.count_nonzero(total <= most))
    return Lsn(int(ticks[max(0, fitting - 1)]))


def single_partition_ticks(bounds: pa.Table) -> Lsn | None:
    """Return the last tick with messages at which the topic had one partition; None if there is none.

    Partitions are only added. So up to that tick, and not after it, all messages have one order: that of offsets.
    """
    ticks = bounds.column("tick").to_numpy()[bounds.column("partitions").to_numpy() == 1]
    return Lsn(int(ticks.max())) if len(ticks) else None


def tick_of(bounds: pa.Table, partitions: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> pa.Array:
    """Return the tick of each message, by `tick_bounds`; raise `ValueError` if a message is in none."""
    number, first, last, tick = (bounds.column(name).to_numpy() for name, _ in _PLACES)
    found = np.zeros(len(offsets), np.int64)
    for partition in np.unique(partitions):
        own, asked = np.flatnonzero(number == partition), np.flatnonzero(partitions == partition)
        at = np.searchsorted(last[own], offsets[asked], side="right")
        if np.any(at == len(own)) or np.any(offsets[asked] < first[own][at]):
            message = f"a message of partition {partition} is in no tick of the range"
            raise ValueError(message)
        found[asked] = tick[own][at]
    return pa.array(found)


def _vectors(batch: pa.RecordBatch, name: str) -> pa.ListArray:
    return pc.struct_field(batch.column("row"), name)
