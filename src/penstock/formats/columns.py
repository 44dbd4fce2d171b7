"""The columns of a reader schema, numbered for kernels, and Arrow made of what kernels put into them.

::

    STRUCT<id BIGINT, tags ARRAY<STRING>>          0 struct ─┬─ 1 id     fixed
                                                             └─ 2 tags   list ── 3 element  span

Column 0 is always the struct of the whole message. Columns stand in the order in which they are met, parents first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.gather import gathered
from penstock.formats.sink import Bytes, Ints, Sink

__all__ = ["Arena", "Column", "Columns", "Store"]

_MOST_BYTES = 2**31 - 1
_NO_INTS = np.empty(0, np.int64)


class Store(enum.IntEnum):
    """What the two numbers of an entry mean."""

    STRUCT = 0
    """Nothing: only whether it is there."""
    LIST = 1
    """The count of items."""
    MAP = 2
    """The count of pairs."""
    FIXED = 3
    """The value, or its bits."""
    SPAN = 4
    """Where bytes begin and how many they are; see `penstock.formats.gather`."""
    DECIMAL = 5
    """The upper and the lower 64 bits of the unscaled value."""
    NUMBER = 6
    """A span with the text of a floating-point number."""


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, how its entries are stored, its children, and its name from the top."""

    type: pa.DataType
    store: Store
    children: tuple[int, ...]
    path: str


@dataclass(frozen=True)
class Arena:
    """The bytes that spans point into: those of the messages, and constants of the plan (negative positions)."""

    data: Bytes
    constants: Bytes


class Columns:
    """The columns of one reader schema."""

    def __init__(self, root: pa.DataType, *, numbers_as_text: bool = False) -> None:
        self._numbers_as_text = numbers_as_text
        self._all: list[Column] = []
        self._add(root, "")
        nulls = [list(self._nulls(index)) for index in range(len(self._all))]
        self._null_at = np.cumsum([0, *map(len, nulls)]).astype(np.int64)
        self._null_list = np.array([column for part in nulls for column in part], np.int64)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: int) -> Column:
        return self._all[index]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._all)

    def filled(self, walk: Callable[[Sink], None], arena: Arena) -> pa.StructArray:
        """Let `walk` count and then write; return the rows."""
        counts = np.zeros(len(self._all), np.int64)
        walk(Sink(counts, np.empty(0, np.uint8), _NO_INTS, _NO_INTS, self._null_at, self._null_list))
        ends = np.cumsum(counts)
        total = int(ends[-1]) if ends[-1] else 1
        sink = Sink(
            ends - counts,
            np.zeros(total, np.uint8),
            np.zeros(total, np.int64),
            np.zeros(total, np.int64),
            self._null_at,
            self._null_list,
        )
        walk(sink)
        assert np.array_equal(sink.count, ends), "both walks put the same"
        return self._array(0, ends - counts, ends, sink, arena)

    def _add(self, kind: pa.DataType, path: str) -> int:
        index = len(self._all)
        store = self._store(kind)
        self._all.append(Column(kind, store, (), path))
        below = [self._add(child.type, _below(path, child.name, store)) for child in _children(kind)]
        self._all[index] = Column(kind, store, tuple(below), path)
        return index

    def _store(self, kind: pa.DataType) -> Store:
        if self._numbers_as_text and pa.types.is_floating(kind):
            return Store.NUMBER
        return next((store for is_kind, store in _STORES if is_kind(kind)), Store.FIXED)

    def _nulls(self, index: int) -> Iterator[int]:
        yield index
        if self._all[index].store == Store.STRUCT:
            for child in self._all[index].children:
                yield from self._nulls(child)

    def _array(self, index: int, starts: Ints, ends: Ints, sink: Sink, arena: Arena) -> pa.Array:
        column = self._all[index]
        part = slice(int(starts[index]), int(ends[index]))
        valid, value, size = sink.valid[part], sink.value[part], sink.size[part]
        below = [self._array(child, starts, ends, sink, arena) for child in column.children]
        return _array(column, _Entries(valid, value, size), below, arena)


@dataclass(frozen=True)
class _Entries:
    valid: Bytes
    value: Ints
    size: Ints

    def bitmap(self) -> pa.Buffer | None:
        return None if self.valid.all() else pa.py_buffer(np.packbits(self.valid, bitorder="little"))


def _array(column: Column, entries: _Entries, below: list[pa.Array], arena: Arena) -> pa.Array:
    count, bitmap = len(entries.valid), entries.bitmap()
    match column.store:
        case Store.STRUCT:
            return pa.Array.from_buffers(column.type, count, [bitmap], children=below)
        case Store.LIST:
            return pa.Array.from_buffers(column.type, count, [bitmap, _offsets(entries.value)], children=below)
        case Store.MAP:
            pairs = pa.StructArray.from_arrays(below, fields=[column.type.key_field, column.type.item_field])
            return pa.Array.from_buffers(column.type, count, [bitmap, _offsets(entries.value)], children=[pairs])
        case Store.SPAN:
            return _spans(column.type, entries, bitmap, arena)
        case Store.DECIMAL:
            both = np.column_stack((entries.size, entries.value))
            return pa.Array.from_buffers(column.type, count, [bitmap, pa.py_buffer(both)])
        case Store.NUMBER:
            return _spans(pa.string(), entries, bitmap, arena).cast(column.type)
        case _:
            return pa.Array.from_buffers(column.type, count, [bitmap, _values(column.type, entries.value)])


def _values(kind: pa.DataType, value: Ints) -> pa.Buffer:
    if pa.types.is_boolean(kind):
        return pa.py_buffer(np.packbits(value.astype(np.uint8), bitorder="little"))
    return pa.py_buffer(value.astype(f"i{kind.bit_width // 8}"))


def _spans(kind: pa.DataType, entries: _Entries, bitmap: pa.Buffer | None, arena: Arena) -> pa.Array:
    offsets = _offsets(np.abs(entries.size))
    data = gathered(entries.value, entries.size, arena.data, arena.constants)
    return pa.Array.from_buffers(kind, len(entries.valid), [bitmap, offsets, pa.py_buffer(data)])


def _offsets(sizes: Ints) -> pa.Buffer:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > _MOST_BYTES:
        message = f"a batch of messages decodes into a column of {offsets[-1]} bytes or items, more than Arrow takes"
        raise DefiniteError(message, "Read fewer messages at once.")
    return pa.py_buffer(offsets.astype(np.int32))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _below(path: str, name: str, store: Store) -> str:
    if store == Store.LIST:
        return f"{path}[]"
    return f"{path}.{name}" if path else name


_STORES = (
    (pa.types.is_struct, Store.STRUCT),
    (pa.types.is_list, Store.LIST),
    (pa.types.is_map, Store.MAP),
    (pa.types.is_string, Store.SPAN),
    (pa.types.is_binary, Store.SPAN),
    (pa.types.is_decimal, Store.DECIMAL),
)
