"""Batches of messages that are text or bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.formats.columns import Arena
from penstock.formats.decoder import Decoder
from penstock.formats.messages import Messages
from penstock.formats.plain.kernel import walk_all
from penstock.formats.sink import Ints, Sink

__all__ = ["PlainDecoder"]


class PlainDecoder(Decoder):
    """Takes messages as they are."""

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        data, is_text = messages.data, self._resolved.format.kind == "TEXT"

        def walk(sink: Sink) -> None:
            walk_all(data, messages.start, messages.end, is_text, sink, messages.faults)

        return self._columns.filled(walk, Arena(data, np.frombuffer(b"\0", np.uint8)))
