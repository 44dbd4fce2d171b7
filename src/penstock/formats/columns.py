"""The columns of a reader schema, numbered for kernels.

::

    STRUCT<id BIGINT, tags ARRAY<STRING>>          0 struct ─┬─ 1 id     fixed
                                                             └─ 2 tags   list ── 3 element  span

Column 0 is always the struct of the whole message. Columns are numbered depth first, parents before children.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.formats.jit import Ints

__all__ = ["Column", "Columns", "Store"]


class Store(enum.IntEnum):
    """How a column stores an entry: the meaning of its numbers."""

    STRUCT = 0
    """None: only validity."""
    LIST = 1
    """The number of items."""
    MAP = 2
    """The number of pairs."""
    FIXED = 3
    """The value, or its bits."""
    SPAN = 4
    """The address and the size of the bytes; see `penstock.formats.spans`."""
    DECIMAL = 5
    """The upper and the lower 64 bits of the unscaled value."""
    NUMBER = 6
    """A span with the text of a floating-point number."""

    @property
    def has_second(self) -> bool:
        """Whether an entry has a second number."""
        return self in (Store.SPAN, Store.DECIMAL, Store.NUMBER)


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, how its entries are stored, its children, and its path from the root."""

    type: pa.DataType
    store: Store
    children: tuple[int, ...]
    path: str


class Columns:
    """The columns of one reader schema."""

    def __init__(self, root: pa.DataType, *, numbers_as_text: bool = False) -> None:
        self._numbers_as_text = numbers_as_text
        self._all: list[Column] = []
        self._add(root, "")
        nulls = [list(self._nulls(index)) for index in range(len(self._all))]
        counts = np.array([len(part) for part in nulls])
        self.nulls: Ints = np.array([column for part in nulls for column in part], np.int64)
        """For each column, the columns that get an entry when it is null: itself and, for a struct, its fields."""
        self.null_parts: Ints = np.column_stack((np.cumsum(counts) - counts, counts))
        """For each column, the start and the length of its part of `nulls`."""

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: int) -> Column:
        return self._all[index]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._all)

    def _nulls(self, index: int) -> Iterator[int]:
        yield index
        if self._all[index].store == Store.STRUCT:
            for child in self._all[index].children:
                yield from self._nulls(child)

    def _add(self, kind: pa.DataType, path: str) -> int:
        index = len(self._all)
        store = self._store(kind)
        self._all.append(Column(kind, store, (), path))
        children = [self._add(one.type, _child_path(path, one.name, store)) for one in _children(kind)]
        self._all[index] = Column(kind, store, tuple(children), path)
        return index

    def _store(self, kind: pa.DataType) -> Store:
        if self._numbers_as_text and pa.types.is_floating(kind):
            return Store.NUMBER
        return next((store for is_kind, store in _STORES if is_kind(kind)), Store.FIXED)


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _child_path(path: str, name: str, store: Store) -> str:
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
