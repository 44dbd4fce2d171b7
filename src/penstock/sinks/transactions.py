"""ENVELOPE TRANSACTIONS: one message for each transaction, with its changes in all tables, in their order.

::

    messages of ENVELOPE CHANGES, of each table ─▶ JSON of each change ─┐
                                                                        ├─▶ ordered, joined by transaction, in parts
    messages of ENVELOPE CHANGES, of each table ─▶ JSON of each change ─┘

| field | content |
|---|---|
| position | the position of the transaction, as Postgres prints an LSN; also the key of the message |
| xid, committed_at | the transaction; null in the snapshot |
| snapshot | whether the changes are rows of the snapshot, which belong to no transaction |
| part, last | the number of this part of the transaction, from 1; whether it is the last part |
| changes | a list: op, table, ordinal, before and after of each change, see `penstock.sinks.changes` |

A transaction that exceeds the size limit of messages is split: its parts follow each other in one partition, because
they have the same key. Rows of tables have different types, so this envelope exists in JSON only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json.encoder import encode_json
from penstock.sinks.messages import SinkMessages, some_columns

__all__ = ["TransactionMessages", "transaction_messages"]

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_TEXT = pa.large_string()
_HEAD = ("position", "xid", "committed_at")
_CHANGE = ("op", "table", "ordinal", "before", "after")
_HEAD_BYTES = 256
"""More than the fields of a message around its changes take."""


@dataclass(frozen=True)
class TransactionMessages:
    """Messages of transactions, in the order of positions."""

    positions: _Ints
    """The position of the transaction of each message."""
    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.positions)


def transaction_messages(tables: Sequence[SinkMessages], limit: int) -> TransactionMessages:
    """Return the transactions of messages of ENVELOPE CHANGES, which are whole; `limit` is the largest message."""
    positions = np.concatenate([np.empty(0, np.int64), *(one.positions for one in tables)])
    ordinals = np.concatenate([np.empty(0, np.int64), *(one.ordinals for one in tables)])
    order = np.lexsort((ordinals, positions))
    changes = _ordered([encode_json(some_columns(one.values, _CHANGE)) for one in tables], _TEXT, order)
    head = _ordered([some_columns(one.values, _HEAD) for one in tables], _head_type(), order)
    is_copied = _ordered([pc.equal(one.values.field("op"), "snapshot") for one in tables], pa.bool_(), order)
    copied = is_copied.to_numpy(zero_copy_only=False)
    sizes = pc.binary_length(changes).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    parts = _parts(_starts(positions[order], copied), sizes, limit - _HEAD_BYTES)
    heads = head.take(pa.array(parts.starts))
    values = _joined(_opened(heads, copied[parts.starts], parts), parts, changes)
    return TransactionMessages(positions[order][parts.starts], heads.field("position").cast(pa.large_binary()), values)


def _opened(heads: pa.StructArray, copied: _Flags, parts: _Parts) -> pa.LargeStringArray:
    """Return the JSON of messages up to their changes, without the closing brace."""
    columns = [*heads.flatten(), pa.array(copied), pa.array(parts.numbers), pa.array(parts.last)]
    texts = encode_json(pa.StructArray.from_arrays(columns, [*_HEAD, "snapshot", "part", "last"]))
    return pc.utf8_slice_codeunits(texts, 0, -1)


def _joined(opened: pa.LargeStringArray, parts: _Parts, changes: pa.LargeStringArray) -> pa.LargeBinaryArray:
    """Return the messages: the changes of each part, in one list."""
    lists = pa.LargeListArray.from_arrays(pa.array(np.append(parts.starts, len(changes))), changes)
    begin, comma, end, nothing = (pa.scalar(text, _TEXT) for text in (',"changes":[', ",", "]}", ""))
    texts = pc.binary_join_element_wise(opened, begin, pc.binary_join(lists, comma), end, nothing)
    return texts.cast(pa.large_binary())


def _head_type() -> pa.StructType:
    return pa.struct(
        [
            pa.field("position", pa.string(), nullable=False),
            pa.field("xid", pa.int64()),
            pa.field("committed_at", pa.timestamp("us", "UTC")),
        ]
    )


def _ordered(arrays: Sequence[pa.Array], kind: pa.DataType, order: _Ints) -> pa.Array:
    """Return the values of all tables in the order of changes."""
    return pa.chunked_array(arrays, kind).combine_chunks().take(pa.array(order))


def _starts(positions: _Ints, copied: _Flags) -> _Ints:
    """Return the number of the first change of each transaction; rows of the snapshot are one of their own."""
    differs = (positions[1:] != positions[:-1]) | (copied[1:] != copied[:-1])
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(positions)), np.bool_), differs]))


# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """The parts of all transactions."""

    starts: _Ints
    """The number of the first change of each part."""
    numbers: _Ints
    """The number of the part in its transaction, from 1."""
    last: _Flags


def _parts(starts: _Ints, sizes: _Ints, limit: int) -> _Parts:
    """Split transactions that begin at `starts` where the changes of a part would exceed a size in total."""
    before = np.concatenate([[0], np.cumsum(sizes)])
    ends = np.append(starts[1:], len(sizes))
    large = np.flatnonzero(before[ends] - before[starts] > limit) if len(starts) else starts
    cuts = [np.fromiter(_cuts(before, starts[one], ends[one], limit), np.int64) for one in large]
    every = np.sort(np.concatenate([starts, *cuts]))
    transaction = np.searchsorted(starts, every, "right") - 1
    numbers = np.arange(len(every)) - np.searchsorted(every, starts)[transaction] + 1
    last = np.append(every[1:], len(sizes)) == ends[transaction] if len(every) else np.empty(0, np.bool_)
    return _Parts(every, numbers, last)


def _cuts(before: _Ints, start: int, end: int, limit: int) -> Iterator[int]:
    """Yield where the second and all later parts of a transaction begin; each has at least one change."""
    while True:
        start = max(start + 1, int(np.searchsorted(before, before[start] + limit, "right")) - 1)
        if start >= end:
            return
        yield start
