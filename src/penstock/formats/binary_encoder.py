"""Write values of many messages into one buffer: the parts from which encoders of binary formats are built.

A message of a binary format is a sequence of parts, some of which are nested. A `Part` is a column of such parts, one
for each message, or for each item of an array. Messages are written in two steps::

    sizes      of every part, from the innermost outwards ─▶ the start of every part in the buffer
    write      every part at its starts; no part depends on another

Each step is a loop of compiled code over a column. Parts of nothing (a null, an empty list) have size 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.jit import Ints, compiled, inner

__all__ = [
    "ByteStrings",
    "FixedWidth",
    "Indexed",
    "Part",
    "Present",
    "Repeated",
    "Sequences",
    "Varints",
    "bytes_and_offsets",
    "copy_bytes",
    "dictionary_parts",
    "encode_messages",
    "list_items",
    "list_offsets",
    "varint_sizes",
    "zigzag",
]

_Bytes = npt.NDArray[np.uint8]
_BLOCK_ROWS = 16_384
"""So many messages are written at a time: they stay in the cache of the processor while their columns are written."""


class Part(ABC):
    """A column of parts."""

    sizes: Ints
    """The size of each, in bytes."""

    @abstractmethod
    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write each part at its start."""


def encode_messages(values: pa.Array, part: Callable[[pa.Array], Part], header: bytes = b"") -> pa.LargeBinaryArray:
    """Return each value as a message after a header; `part` returns the part of some of the values."""
    blocks = [part(values.slice(first, _BLOCK_ROWS)) for first in range(0, len(values), _BLOCK_ROWS)]
    offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(block.sizes + len(header) for block in blocks)]))
    memory = pa.allocate_buffer(int(offsets[-1]))  # Arrow uses freed memory again, numpy returns it to the system
    out = np.frombuffer(memory, np.uint8)
    for place, value in enumerate(header):
        out[offsets[:-1] + place] = value
    for number, block in enumerate(blocks):
        first = number * _BLOCK_ROWS
        block.write(offsets[first : first + len(block.sizes)] + len(header), out)
    return pa.Array.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), memory])


# -- leaves ------------------------------------------------------------------------------------------------------------


class Varints(Part):
    """Unsigned numbers in groups of seven bits, the lowest first."""

    def __init__(self, values: Ints) -> None:
        self._values = np.array(values, np.int64)  # a copy: kernels are compiled again for arrays that are read-only
        self.sizes = varint_sizes(self._values)

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write each number at its start."""
        _write_varints(self._values, starts, out)


class FixedWidth(Part):
    """Values of one size."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
        self.sizes = np.full(len(values), values.itemsize, np.int64)

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write each value at its start."""
        for place in range(self._data.shape[1]):
            out[starts + place] = self._data[:, place]


class ByteStrings(Part):
    """_Bytes without their length."""

    def __init__(self, values: pa.Array) -> None:
        """Create the part from binary or text values, none of them null."""
        self._data, self._offsets = bytes_and_offsets(values)
        self.sizes = np.diff(self._offsets)

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write each value at its start."""
        _write_bytes(self._data, self._offsets, starts, out)


def dictionary_parts(values: pa.DictionaryArray) -> tuple[pa.Array, Ints]:
    """Return the values of the dictionary between the first and the last that occur, and the number of each row's.

    The last of the values is null if a row is null.
    """
    indexes = np.asarray(pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False), np.int64)
    is_valid = values.indices.is_valid().to_numpy(zero_copy_only=False) if values.indices.null_count else None
    used = indexes if is_valid is None else indexes[is_valid]
    first, last = (int(used.min()), int(used.max())) if len(used) else (0, -1)
    distinct, indexes = values.dictionary.slice(first, last - first + 1), indexes - first
    if is_valid is not None:
        indexes[~is_valid] = len(distinct)
        distinct = pa.concat_arrays([distinct, pa.nulls(1, distinct.type)])
    return distinct, indexes


class Indexed(Part):
    """Values that rows share: row n has the value with the number `indexes[n]`."""

    def __init__(self, values: pa.Array, indexes: npt.NDArray[Any]) -> None:
        """Create the part from binary or text values, none of them null."""
        self._data, self._offsets = bytes_and_offsets(values)
        self._indexes = np.array(indexes, np.int64)
        self.sizes = np.diff(self._offsets)[self._indexes]

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write the value of each row at its start."""
        _write_indexed(self._data, self._offsets, self._indexes, starts, out)


def bytes_and_offsets(values: pa.Array) -> tuple[_Bytes, Ints]:
    """Return the bytes of binary or text values, and where each begins and ends in them; both are read-only."""
    held = values.cast(pa.large_binary())
    data, offsets = np.frombuffer(held.buffers()[2] or b"", np.uint8), np.zeros(1, np.int64)
    if len(held):
        offsets = np.frombuffer(held.buffers()[1], np.int64)[held.offset : held.offset + len(held) + 1]
    data.flags.writeable = offsets.flags.writeable = False  # otherwise kernels are compiled for both
    return data, offsets


# -- combinations ------------------------------------------------------------------------------------------------------


class Sequences(Part):
    """Several parts, one after the other."""

    def __init__(self, parts: Sequence[Part], count: int) -> None:
        self._parts = parts
        self.sizes = (
            np.sum([part.sizes for part in parts], axis=0, dtype=np.int64) if parts else np.zeros(count, np.int64)
        )

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write the parts of each row from its start on."""
        for part in self._parts:
            part.write(starts, out)
            starts = starts + part.sizes


@dataclass
class Present(Part):
    """Parts that only some rows have: those with the numbers `rows`."""

    part: Part
    rows: Ints
    count: int

    def __post_init__(self) -> None:
        self.sizes = np.zeros(self.count, np.int64)
        self.sizes[self.rows] = self.part.sizes

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write the parts of the rows that have them."""
        self.part.write(starts[self.rows], out)


@dataclass
class Repeated(Part):
    """The items of lists, one after the other; list n has the items from `offsets[n]` up to `offsets[n + 1]`."""

    items: Part
    offsets: Ints

    def __post_init__(self) -> None:
        self._before = np.concatenate([[0], np.cumsum(self.items.sizes)])
        self.sizes = np.diff(self._before[self.offsets])

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write the items of each list from its start on."""
        shift = starts - self._before[self.offsets[:-1]]
        self.items.write(self._before[:-1] + np.repeat(shift, np.diff(self.offsets)), out)


def list_offsets(lists: pa.Array) -> Ints:
    """Return where each list, or map, begins and ends among `list_items`."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return np.asarray(offsets - offsets[0])


def list_items(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Return the items of these lists, or maps: of a slice, `items` has those of other lists, too."""
    first, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return items.slice(first, end - first)


# -- kernels -----------------------------------------------------------------------------------------------------------


def zigzag(values: npt.NDArray[Any]) -> Ints:
    """Return signed numbers as unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    signed = values.astype(np.int64)
    return np.asarray((signed << 1) ^ (signed >> 63))


@inner
def _varint_size(value: int) -> int:
    rest, size = np.uint64(value), 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        size += 1
    return size


@compiled
def varint_sizes(values: Ints) -> Ints:
    """Return the size of each number as a varint."""
    sizes = np.empty(len(values), np.int64)
    for index in range(len(values)):
        sizes[index] = _varint_size(values[index])
    return sizes


@compiled
def _write_varints(values: Ints, starts: Ints, out: _Bytes) -> None:
    for index in range(len(values)):
        rest, at = np.uint64(values[index]), starts[index]
        while rest >= np.uint64(128):
            out[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
            rest >>= np.uint64(7)
            at += 1
        out[at] = np.uint8(rest)


@inner
def copy_bytes(data: Any, begin: Any, end: Any, out: Any, at: Any) -> Any:
    """Copy bytes to a place; return the place after them.

    Indexes are unsigned: numba handles negative ones as counted from the end, and such a loop is ten times as slow.
    """
    source, target, count = np.uint64(begin), np.uint64(at), np.uint64(end - begin)
    place = np.uint64(0)
    while place < count:
        out[target + place] = data[source + place]
        place += np.uint64(1)
    return at + end - begin


@compiled
def _write_bytes(data: _Bytes, offsets: Ints, starts: Ints, out: _Bytes) -> None:
    for index in range(len(starts)):
        copy_bytes(data, offsets[index], offsets[index + 1], out, starts[index])


@compiled
def _write_indexed(data: _Bytes, offsets: Ints, indexes: Ints, starts: Ints, out: _Bytes) -> None:
    for index in range(len(indexes)):
        copy_bytes(data, offsets[indexes[index]], offsets[indexes[index] + 1], out, starts[index])
