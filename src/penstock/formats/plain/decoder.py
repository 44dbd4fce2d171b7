"""Batches of messages that are text or bytes."""

from __future__ import annotations

import pyarrow as pa

from penstock.formats.compiling import Ints
from penstock.formats.decoder import Decoder
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.plain.kernel import walk_all
from penstock.formats.sink import Sink

__all__ = ["PlainDecoder"]


class PlainDecoder(Decoder):
    """Takes messages as they are."""

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        is_text = self._resolved.format.kind == "TEXT"

        def walk(first: int, sink: Sink) -> int:
            return walk_all(first, messages.start, messages.end, is_text, sink, address(messages.faults))

        return self._filled(messages, walk)
