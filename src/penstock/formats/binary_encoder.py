"""Write values of many messages into one buffer: the parts from which encoders of binary formats are built.

A message of a binary format is a sequence of parts, some of which are nested. A `Part` is a column of such parts, one
for each message, or for each item of an array. Messages are written in two steps::

    sizes      of every part, from the innermost outwards ─▶ the start of every part in the buffer
    write      every part at its starts; no part depends on another

Each step is a loop of compiled code over a column. Parts of nothing (a null, an empty list) have size 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.jit import Ints, compiled, inner

__all__ = [
    "ByteStrings",
    "FixedWidth",
    "Part",
    "Present",
    "Repeated",
    "Sequences",
    "Varints",
    "encode_messages",
    "list_items",
    "list_offsets",
    "varint_sizes",
    "zigzag",
]

_Bytes = npt.NDArray[np.uint8]


class Part(ABC):
    """A column of parts."""

    sizes: Ints
    """The size of each, in bytes."""

    @abstractmethod
    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write each part at its start."""


def encode_messages(part: Part, header: bytes = b"") -> pa.LargeBinaryArray:
    """Return the messages, each after a header."""
    offsets = np.concatenate([[0], np.cumsum(part.sizes + len(header))])
    out = np.empty(int(offsets[-1]), np.uint8)
    for place, value in enumerate(header):
        out[offsets[:-1] + place] = value
    part.write(offsets[:-1] + len(header), out)
    return pa.Array.from_buffers(pa.large_binary(), len(part.sizes), [None, pa.py_buffer(offsets), pa.py_buffer(out)])


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
        held = values.cast(pa.large_binary())
        self._offsets = np.frombuffer(held.buffers()[1], np.int64)[held.offset : held.offset + len(held) + 1]
        self._data = np.frombuffer(held.buffers()[2] or b"", np.uint8)
        self.sizes = np.diff(self._offsets)

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write each value at its start."""
        _write_bytes(self._data, self._offsets, starts, out)


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


@compiled
def _write_bytes(data: _Bytes, offsets: Ints, starts: Ints, out: _Bytes) -> None:
    for index in range(len(starts)):
        at = starts[index]
        for place in range(offsets[index], offsets[index + 1]):
            out[at] = data[place]
            at += 1
