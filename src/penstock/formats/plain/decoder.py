"""Decoder of TEXT and BYTES messages."""

from __future__ import annotations

import pyarrow as pa

from penstock.formats.column_writer import ColumnWriter
from penstock.formats.decoder import Decoder
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.plain.kernel import walk_all

__all__ = ["PlainDecoder"]


class PlainDecoder(Decoder):
    """Decodes each message as one value."""

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        is_text = self._resolved.format.kind == "TEXT"

        def walk(first: int, out: ColumnWriter) -> int:
            return walk_all(first, messages.start, messages.end, is_text, out, address(messages.errors))

        return self._fill(messages, walk)
