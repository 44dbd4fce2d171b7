"""Decoder of CSV messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.formats.column_writer import ColumnWriter
from penstock.formats.csv.kernel import Plan, walk_all
from penstock.formats.decoder import Decoder
from penstock.formats.format import CsvFormat, ResolvedFormat
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.text_writer import scalar_rule
from penstock.formats.writer_schemas import WriterSchemas

__all__ = ["CsvDecoder"]


class CsvDecoder(Decoder):
    """Decodes one line of fields per message."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, CsvFormat)
        rules = [scalar_rule(column.type, column.path) for column in list(self._columns)[1:]]
        self._rules = np.array(rules, np.int64)
        delimiter, quote = ord(resolved.format.delimiter), ord(resolved.format.quote)
        self._plan = Plan(address(self._rules), len(rules), delimiter, quote, shift=0)

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        unquoted = np.empty(messages.extent, np.uint8)
        plan = self._plan._replace(shift=address(unquoted) - messages.first)

        def walk(first: int, out: ColumnWriter) -> int:
            return walk_all(first, messages.start, messages.end, plan, out, address(messages.errors))

        return self._fill(messages, walk)
