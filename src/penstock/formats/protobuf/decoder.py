"""Decoder of Protobuf messages."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.formats.column_writer import ColumnWriter
from penstock.formats.decode_errors import CODE, ErrorCode
from penstock.formats.decoder import Decoder
from penstock.formats.format import Nanoseconds, ProtobufFormat, ResolvedFormat
from penstock.formats.framing import read_indexes
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.protobuf.descriptor import Pool, load_files
from penstock.formats.protobuf.field_occurrences import ScratchMemory
from penstock.formats.protobuf.kernel import walk_all
from penstock.formats.protobuf.plan import PlanBuilder, type_conflicts
from penstock.formats.protobuf.registry_files import message_at, registered_files
from penstock.formats.registry import RegisteredSchema
from penstock.formats.writer_schemas import WriterSchemas, reject

__all__ = ["ProtobufDecoder"]


class ProtobufDecoder(Decoder):
    """Decodes messages of every writer; the plan grows with the first message of a new writer."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, ProtobufFormat)
        self._pool = Pool(load_files(resolved.reader))
        truncate = resolved.format.nanoseconds == Nanoseconds.TRUNCATE
        reader = self._pool.message(resolved.message)
        self._builder = PlanBuilder(self._pool, reader, self._columns, truncate=truncate)
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
                    reject(messages, chosen, ErrorCode.REJECTED, -1 - root)
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
        return next(type_conflicts(self._pool, Pool(files), found.name), "")
