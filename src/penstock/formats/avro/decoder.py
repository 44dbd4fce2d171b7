"""Decoder of Avro messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.formats.avro.kernel import walk_all
from penstock.formats.avro.plan import PlanBuilder
from penstock.formats.avro.schema import parse_avro
from penstock.formats.column_writer import ColumnWriter
from penstock.formats.decode_errors import ErrorCode
from penstock.formats.decoder import Decoder
from penstock.formats.format import AvroFormat, ResolvedFormat
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.schema_registry import RegisteredSchema, WriterSchemas

__all__ = ["AvroDecoder"]


class AvroDecoder(Decoder):
    """Decodes messages of all given writer schemas."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        super().__init__(resolved, writers)
        reader = parse_avro(resolved.reader)
        self._builder = PlanBuilder(reader, self._columns)
        self._reasons = self._builder.messages
        assert isinstance(resolved.format, AvroFormat)
        given = resolved.format.reader_schema
        self._roots = {-1: self._builder.add(reader if given is None else parse_avro(given))}
        self._unreadable: dict[int, int] = {}
        for one, writer in writers.items():
            if writer is not None:
                self._add(one, writer)
        self._tables = self._builder.tables()

    def _add(self, schema_id: int, writer: RegisteredSchema) -> None:
        try:
            if writer.kind != "AVRO":
                self._unreadable[schema_id] = self._add_reason(f"schema has format {writer.kind}, expected AVRO")
            else:
                schema = parse_avro(writer.text, [text for _, text in writer.references])
                self._roots[schema_id] = self._builder.add(schema)
        except PenstockError as error:
            self._unreadable[schema_id] = self._add_reason(error.message)

    def _names(self) -> Sequence[str]:
        return self._builder.names

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        for one, reason in self._unreadable.items():
            messages.reject(np.flatnonzero(ids == one), ErrorCode.REJECTED, reason)
        roots = np.full(len(ids), self._roots[-1], np.int64)
        for one in np.unique(ids) if self._resolved.is_framed else ():
            roots[ids == one] = self._roots.get(int(one), 0)
        plan = self._tables.plan

        def walk(first: int, out: ColumnWriter) -> int:
            return walk_all(first, messages.start, messages.end, roots, plan, out, address(messages.errors))

        return self._fill(messages, walk)
