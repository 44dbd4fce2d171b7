"""Plans: how messages of each writer's descriptor are decoded to the columns of the reader's descriptor.

Fields are matched by number. If both descriptors define a number, their types must be compatible; otherwise every
message of that writer is rejected, with the name of the field: bytes of one type decoded as another are rarely an
error, and always wrong. A field that only the writer has is skipped; a field that only the reader has is missing. Enum
names are the writer's, so that new names are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Columns
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoMessage
from penstock.formats.protobuf.types import field_kind, is_map, type_of

__all__ = ["PlanBuilder", "Tables", "type_conflicts"]

_COMPATIBLE = ({ops.INT32, ops.INT64}, {ops.SINT32, ops.SINT64}, {ops.STRING, ops.BYTES}, {ops.UINT32, ops.UINT64})


class Tables(NamedTuple):
    """A plan, and the memory that holds it."""

    messages: Ints
    fields: Ints
    names: Ints
    constants: npt.NDArray[np.uint8]

    @property
    def plan(self) -> ops.Plan:
        """The plan for kernels; keep these tables alive while it is in use."""
        return ops.Plan(address(self.messages), address(self.fields), address(self.names), address(self.constants))


class PlanBuilder:
    """Builds one table with the plans of several writers for one reader message."""

    def __init__(self, pool: Pool, reader: ProtoMessage, columns: Columns, *, truncate: bool) -> None:
        self._pool = pool
        self._reader = reader
        self._columns = columns
        self._timestamp = ops.TIMESTAMP if truncate else ops.TIMESTAMP_EXACT
        self._messages: list[list[int]] = []
        self._fields: list[list[int]] = []
        self._enums: list[list[int]] = []
        self._constants = bytearray()
        self.names: list[str] = [""]
        """Field names for error records: index 0 is no field, then one per field."""

    def add(self, pool: Pool) -> int:
        """Add a writer with the files in `pool`; return the number of its message."""
        return self._message(self._reader, pool, self._columns[0].children, "")

    def tables(self) -> Tables:
        """Return the plan of all writers added."""
        return Tables(
            np.array(self._messages, np.int64),
            np.array(self._fields, np.int64),
            np.array(self._enums, np.int64),
            np.frombuffer(bytes(self._constants) + b"\0", np.uint8),
        )

    def extent(self) -> tuple[int, int]:
        """Return the maximum nesting depth, and the maximum number of fields in open messages."""
        deepest = max(column.path.count(".") + column.path.count("[]") for column in self._columns) + 2
        widest = max((count for _, count in self._messages), default=0)
        return deepest, widest * deepest

    def _message(self, message: ProtoMessage, pool: Pool, columns: tuple[int, ...], path: str) -> int:
        """Add a message with its `columns`; its fields are contiguous, before those of nested messages."""
        first = len(self._fields)
        index = len(self._messages)
        self._messages.append([first, len(message.fields)])
        paths = [f"{path}.{one.name}" if path else one.name for one in message.fields]
        self._fields += [[] for _ in message.fields]
        self.names += paths
        for place, (one, column, below) in enumerate(zip(message.fields, columns, paths, strict=True)):
            kind, *numbers = self._field(one, message, pool, column, below)
            values = self._columns[column].children[0] if one.repeated else column
            self._fields[first + place] = [one.number << 3 | ops.wire_type(kind), kind, *numbers, values]
        return index

    def _field(self, field: ProtoField, message: ProtoMessage, pool: Pool, column: int, path: str) -> list[int]:
        kind = field_kind(self._pool, field, message.name)
        if is_map(self._pool, field, message.name):
            entry = self._pool.message(type_of(self._pool, field, message.name))
            pair = ProtoMessage(entry.name, sorted(entry.fields, key=lambda one: one.number), map_entry=True)
            below = self._message(pair, pool, self._columns[column].children, path)
            return [ops.MESSAGE, column, ops.MAP, ops.IMPLICIT, below, 0]
        cardinality = ops.REPEATED if field.repeated else ops.SINGLE
        own = self._columns[column].children[0] if field.repeated else column
        presence = self._presence(field, kind, message)
        first, second = 0, 0
        if kind in (ops.MESSAGE, ops.WRAPPED):
            inner = self._pool.message(type_of(self._pool, field, message.name))
            into = self._columns[own].children if kind == ops.MESSAGE else (own,)
            first = self._message(inner, pool, into, path)
        elif kind == ops.ENUM:
            first, second = self._names(field, message, pool)
        return [self._timestamp if kind == ops.TIMESTAMP else kind, column, cardinality, presence, first, second]

    def _presence(self, field: ProtoField, kind: int, message: ProtoMessage) -> int:
        if message.map_entry:
            return ops.IMPLICIT
        of_message = kind in (ops.MESSAGE, ops.WRAPPED, ops.TIMESTAMP, ops.EMPTY)
        return ops.EXPLICIT if of_message and field.presence == ops.IMPLICIT else field.presence

    def _names(self, field: ProtoField, message: ProtoMessage, pool: Pool) -> tuple[int, int]:
        name = type_of(self._pool, field, message.name)
        names = (pool.enums.get(name) or self._pool.enums[name]).names
        first = len(self._enums)
        for number, text in names.items():
            self._enums.append([number, len(self._constants), len(text.encode())])
            self._constants += text.encode()
        return first, len(names)


def type_conflicts(
    reader: Pool, writer: Pool, message: str, path: str = "", seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield the fields of a writer's message whose type is incompatible with the reader's."""
    if message in seen or message not in writer.messages or message not in reader.messages:
        return
    theirs = {one.number: one for one in writer.messages[message].fields}
    for ours in reader.messages[message].fields:
        other = theirs.get(ours.number)
        if other is None:
            continue
        below = f"{path}.{ours.name}" if path else ours.name
        kind, found = field_kind(reader, ours, message), field_kind(writer, other, message)
        if ours.repeated != other.repeated or not _are_compatible(kind, found):
            yield f'field "{below}": type in the message differs from the reader schema'
        elif kind in (ops.MESSAGE, ops.WRAPPED):
            name, named = type_of(reader, ours, message), type_of(writer, other, message)
            if name != named:
                yield f'field "{below}": message {named}, expected {name}'
            else:
                yield from type_conflicts(reader, writer, name, below, seen | {message})


def _are_compatible(kind: int, found: int) -> bool:
    return kind == found or any({kind, found} <= both for both in _COMPATIBLE)
