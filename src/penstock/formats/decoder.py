"""Decoders: one per resolved format and set of writer schemas, for any number of batches.

::

    binary column ─▶ Messages ─▶ schema ids (framing) ─▶ plan per writer ─▶ kernel ─▶ columns ─▶ logical types ─▶ rows
                                       │                                        │
                                       └────────── error records ───────────────┴───▶ problems (text; null = no error)

One plan holds all writer schemas of a batch; each message starts at the root node of its schema. A decoder does no I/O:
it receives the schemas (`penstock.formats.registry`) as an argument, so that it can be sent to an executor.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.formats.arrow import arrow_array
from penstock.formats.column_buffers import fill_columns
from penstock.formats.column_writer import ColumnWriter
from penstock.formats.columns import Columns
from penstock.formats.decode_errors import ErrorCode, Names, error_messages
from penstock.formats.format import CsvFormat, JsonFormat, ResolvedFormat
from penstock.formats.framing import read_ids
from penstock.formats.jit import Ints
from penstock.formats.json.plan import KINDS
from penstock.formats.logical_types import convert_rows
from penstock.formats.memory import address
from penstock.formats.messages import Messages, messages_of
from penstock.formats.writer_schemas import WriterSchemas, reject

__all__ = ["Decoded", "Decoder"]


class Decoded(NamedTuple):
    """Rows of the reader schema, and the problem of each message: one of the two is null; for a tombstone both are."""

    rows: pa.StructArray
    problems: pa.StringArray


class Decoder(abc.ABC):
    """Decodes batches of one format."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        textual = isinstance(resolved.format, JsonFormat | CsvFormat)
        self._resolved = resolved
        self._writers = writers
        self._columns = Columns(resolved.physical_type, numbers_as_text=textual)
        self._reasons: list[str] = []

    def decode(self, array: pa.Array | pa.ChunkedArray) -> Decoded:
        """Decode a binary column."""
        messages = messages_of(array)
        ids = np.full(len(messages), -1, np.int64)
        if self._resolved.is_framed:
            ids = read_ids(messages.start, messages.end, address(messages.errors))
            self._reject_unknown(messages, ids)
        rows = self._rows(messages, ids)
        names = Names(self._names(), self._reasons, KINDS)
        kind = self._resolved.format.kind
        problems = error_messages(kind, messages.errors, messages.sizes, ids, names)
        checked = self._check_schemas(Decoded(rows, problems))
        return Decoded(*convert_rows(*checked, self._resolved.logical_types))

    @abc.abstractmethod
    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        """Return the rows; errors are written to the error records of the messages."""

    def _check_schemas(self, decoded: Decoded) -> Decoded:
        """Reject messages that decode but do not match the expected schema; runs before logical types are converted."""
        return decoded

    def _fill(self, messages: Messages, walk: Callable[[int, ColumnWriter], int]) -> pa.StructArray:
        """Run a kernel over all messages and return the rows."""
        return arrow_array(self._columns, fill_columns(self._columns, len(messages), walk))

    def _names(self) -> Sequence[str]:
        """Return the field name of each node in an error record: here, the column paths."""
        return [column.path for column in self._columns]

    def _reject_unknown(self, messages: Messages, ids: Ints) -> None:
        for one in np.unique(ids):
            if one >= 0 and self._writers[int(one)] is None:
                reject(messages, np.flatnonzero(ids == one), ErrorCode.UNKNOWN_SCHEMA)

    def _add_reason(self, reason: str) -> int:
        self._reasons.append(reason)
        return len(self._reasons) - 1
