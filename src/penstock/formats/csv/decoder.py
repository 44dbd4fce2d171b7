"""Batches of CSV messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.formats.columns import Arena
from penstock.formats.csv.kernel import Plan, walk_all
from penstock.formats.decoder import Decoder
from penstock.formats.format import CsvFormat, ResolvedFormat
from penstock.formats.messages import Messages
from penstock.formats.sink import Ints, Sink
from penstock.formats.text_put import scalar_rule
from penstock.formats.writers import Writers

__all__ = ["CsvDecoder"]


class CsvDecoder(Decoder):
    """Reads one line of fields per message."""

    def __init__(self, resolved: ResolvedFormat, writers: Writers) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, CsvFormat)
        rules = [scalar_rule(column.type, column.path) for column in list(self._columns)[1:]]
        delimiter, quote = ord(resolved.format.delimiter), ord(resolved.format.quote)
        self._plan = Plan(np.array(rules, np.int64), delimiter, quote)

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        data, plan = messages.data, self._plan
        arena = np.concatenate((data, np.zeros_like(data)))

        def walk(sink: Sink) -> None:
            walk_all(data, messages.start, messages.end, arena, plan, sink, messages.faults)

        return self._columns.filled(walk, Arena(arena, np.frombuffer(b"\0", np.uint8)))
