"""Decoder of Protobuf messages, and its plans: how messages of each writer are decoded to the columns of the reader.

Fields are matched by number. If both descriptors define a number, their types must be compatible; otherwise every
message of that writer is rejected, with the name of the field: bytes of one type decoded as another are rarely an
error, and always wrong. A field that only the writer has is skipped; a field that only the reader has is missing. Enum
names are the writer's, so that new names are known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.formats.column_writer import ColumnWriter
from penstock.formats.columns import Columns
from penstock.formats.decode_errors import CODE, ErrorCode
from penstock.formats.decoder import Decoder
from penstock.formats.format import Nanoseconds, ProtobufFormat, ResolvedFormat
from penstock.formats.framing import read_indexes
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoMessage, load_files
from penstock.formats.protobuf.kernel import walk_all
from penstock.formats.protobuf.proto_parser import message_at, registered_files
from penstock.formats.protobuf.tags import ScratchMemory
from penstock.formats.protobuf.types import field_kind, is_map, type_of
from penstock.formats.schema_registry import RegisteredSchema, WriterSchemas

__all__ = ["ProtobufDecoder"]


class ProtobufDecoder(Decoder):
    """Decodes messages of every writer; the plan grows with the first message of a new writer."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, ProtobufFormat)
        self._pool = Pool(load_files(resolved.reader))
        truncate = resolved.format.nanoseconds == Nanoseconds.TRUNCATE
        reader = self._pool.message(resolved.message)
        self._builder = _PlanBuilder(self._pool, reader, self._columns, truncate=truncate)
        self._roots = {-1: self._builder.add(self._pool)}
        self._roots_by_index: dict[tuple[int, int], int] = {}
        self._plan_lock = threading.Lock()
        self._tables = self._builder.tables()

    def _names(self) -> Sequence[str]:
        return self._builder.names

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        roots = np.zeros(len(ids), np.int64)
        if self._resolved.is_framed:
            message_indexes = read_indexes(messages.start, messages.end, address(messages.errors))
            pairs = np.column_stack((ids, message_indexes))[messages.errors[:, CODE] == ErrorCode.OK]
            for one, message_index in np.unique(pairs, axis=0).tolist():
                chosen = np.flatnonzero(
                    (ids == one) & (message_indexes == message_index) & (messages.errors[:, CODE] == ErrorCode.OK)
                )
                root = self._root(one, message_index)
                if root < 0:
                    messages.reject(chosen, ErrorCode.REJECTED, -1 - root)
                roots[chosen] = root
        tables, memory = self._tables, ScratchMemory(messages.longest, *self._builder.extent())
        plan = tables.plan

        def walk(first: int, out: ColumnWriter) -> int:
            start, end, errors = messages.start, messages.end, address(messages.errors)
            return walk_all(first, start, end, roots, plan, memory.scratch, out, errors)

        return self._fill(messages, walk)

    def _root(self, schema_id: int, message_index: int) -> int:
        """Return the root of the plan of a writer, or ``-1 - reason``."""
        with self._plan_lock:
            if (schema_id, message_index) not in self._roots_by_index:
                self._roots_by_index[schema_id, message_index] = self._add_writer(schema_id, message_index)
            return self._roots_by_index[schema_id, message_index]

    def _add_writer(self, schema_id: int, message_index: int) -> int:
        writer = self._writers[schema_id]
        assert writer is not None
        try:
            reason = self._reason(writer, message_index)
        except PenstockError as error:
            reason = error.message
        if reason:
            return -1 - self._add_reason(reason)
        root = self._builder.add(Pool(registered_files(writer)))
        self._tables = self._builder.tables()
        return root

    def _reason(self, writer: RegisteredSchema, message_index: int) -> str:
        """Return reason messages of a writer cannot be decoded; an empty string if they can."""
        if writer.kind != "PROTOBUF":
            return f"schema has format {writer.kind}, expected PROTOBUF"
        files = registered_files(writer)
        found = message_at(files[-1], message_index)
        if found is None:
            return "message index does not refer to a message of the schema"
        if found.name != self._resolved.message:
            return f"message {found.name}, expected {self._resolved.message}"
        return next(_type_conflicts(self._pool, Pool(files), found.name), "")


# -- plans -------------------------------------------------------------------------------------------------------------


class _Tables(NamedTuple):
    """A plan, and the memory that holds it."""

    messages: Ints
    fields: Ints
    names: Ints
    constants: npt.NDArray[np.uint8]

    @property
    def plan(self) -> ops.Plan:
        """The plan for kernels; keep these tables alive while it is in use."""
        return ops.Plan(address(self.messages), address(self.fields), address(self.names), address(self.constants))


class _PlanBuilder:
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

    def tables(self) -> _Tables:
        """Return the plan of all writers added."""
        return _Tables(
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
            tag = one.number << 3 | ops.wire_type(kind)
            self._fields[first + place] = [tag, kind, *numbers, values, one.oneof + 1]
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


# -- type conflicts ----------------------------------------------------------------------------------------------------


def _type_conflicts(
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
                yield from _type_conflicts(reader, writer, name, below, seen | {message})


_COMPATIBLE = ({ops.INT32, ops.INT64}, {ops.SINT32, ops.SINT64}, {ops.STRING, ops.BYTES}, {ops.UINT32, ops.UINT64})


def _are_compatible(kind: int, found: int) -> bool:
    return kind == found or any({kind, found} <= both for both in _COMPATIBLE)
