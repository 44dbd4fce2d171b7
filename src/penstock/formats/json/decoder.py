"""Batches of JSON messages."""

from __future__ import annotations

import pyarrow as pa

from penstock.formats.compiling import Ints
from penstock.formats.decoder import Decoded, Decoder
from penstock.formats.format import Extra, JsonFormat, ResolvedFormat
from penstock.formats.json.connect_schema import checked_schemas
from penstock.formats.json.kernel import walk_all
from penstock.formats.json.plan import Scratch, json_plan
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.sink import Sink
from penstock.formats.writers import Writers

__all__ = ["JsonDecoder"]


class JsonDecoder(Decoder):
    """Reads messages whose columns were given, inferred or registered."""

    def __init__(self, resolved: ResolvedFormat, writers: Writers) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, JsonFormat)
        refuse_extra = resolved.format.extra == Extra.REFUSE
        self._tables = json_plan(self._columns, raw=resolved.raw, wrapped=resolved.wrapped, refuse_extra=refuse_extra)

    def _checked(self, decoded: Decoded) -> Decoded:
        """Where messages bring their schema, compare it with the one that the columns were made by."""
        return Decoded(*checked_schemas(*decoded, self._resolved.reader)) if self._resolved.reader else decoded

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        scratch = Scratch(messages, len(self._tables.keys))
        plan = self._tables.plan(scratch.slots)

        def walk(first: int, sink: Sink) -> int:
            return walk_all(first, messages.start, messages.end, plan, scratch.tape, sink, address(messages.faults))

        return self._filled(messages, walk)
