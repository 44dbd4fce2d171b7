"""Decoder of JSON messages."""

from __future__ import annotations

import pyarrow as pa

from penstock.formats.column_writer import ColumnWriter
from penstock.formats.decoder import Decoded, Decoder
from penstock.formats.format import Extra, JsonFormat, ResolvedFormat
from penstock.formats.jit import Ints
from penstock.formats.json.connect_schema import reject_changed_schemas
from penstock.formats.json.kernel import walk_all
from penstock.formats.json.plan import Scratch, json_plan
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.schema_registry import WriterSchemas

__all__ = ["JsonDecoder"]


class JsonDecoder(Decoder):
    """Decodes messages whose columns are specified, inferred or registered."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, JsonFormat)
        refuse_extra = resolved.format.extra == Extra.REFUSE
        self._tables = json_plan(self._columns, raw=resolved.raw, wrapped=resolved.wrapped, refuse_extra=refuse_extra)

    def _check_schemas(self, decoded: Decoded) -> Decoded:
        """Reject messages whose schema, if they contain one, differs from the one that determined the columns."""
        return Decoded(*reject_changed_schemas(*decoded, self._resolved.reader)) if self._resolved.reader else decoded

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        scratch = Scratch(messages, len(self._tables.keys))
        plan = self._tables.plan(scratch.slots)

        def walk(first: int, out: ColumnWriter) -> int:
            return walk_all(first, messages.start, messages.end, plan, scratch.tape, out, address(messages.errors))

        return self._fill(messages, walk)
