"""Messages into rows: one decoder per resolved format and set of writer schemas, for any number of batches.

::

    binary column ─▶ Messages ─▶ schema ids (framing) ─▶ plan per writer ─▶ kernel ─▶ columns ─▶ logical types ─▶ rows
                                       │                                        │
                                       └────────────── faults ──────────────────┴─────▶ problems (text, null = fine)

All writer schemas of a batch are in one plan; each message begins at the node of its own. Nothing is looked up here: a
decoder is given what ids mean (`penstock.formats.registry`), so that it can be sent to an executor.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.formats.arrow import arrow_array
from penstock.formats.columns import Columns
from penstock.formats.compiling import Ints
from penstock.formats.entries import filled
from penstock.formats.format import CsvFormat, JsonFormat, ResolvedFormat
from penstock.formats.framing import read_ids
from penstock.formats.json.plan import KINDS
from penstock.formats.logical_types import converted
from penstock.formats.memory import address
from penstock.formats.messages import Messages, of_array
from penstock.formats.problems import Names, Problem, problem_texts
from penstock.formats.sink import Sink
from penstock.formats.writers import Writers, refuse

__all__ = ["Decoded", "Decoder"]


class Decoded(NamedTuple):
    """Rows of the reader schema, and for each message its problem; one of both is null, for a tombstone both."""

    rows: pa.StructArray
    problems: pa.StringArray


class Decoder(abc.ABC):
    """Decodes batches of one format."""

    def __init__(self, resolved: ResolvedFormat, writers: Writers) -> None:
        textual = isinstance(resolved.format, JsonFormat | CsvFormat)
        self._resolved = resolved
        self._writers = writers
        self._columns = Columns(resolved.physical_type, numbers_as_text=textual)
        self._refusals: list[str] = []

    def decode(self, array: pa.Array | pa.ChunkedArray) -> Decoded:
        """Decode a binary column."""
        messages = of_array(array)
        ids = np.full(len(messages), -1, np.int64)
        if self._resolved.framed:
            ids = read_ids(messages.start, messages.end, address(messages.faults))
            self._refuse_unknown(messages, ids)
        rows = self._rows(messages, ids)
        names = Names(self._names(), self._refusals, KINDS)
        kind = self._resolved.format.kind
        problems = problem_texts(kind, messages.faults, messages.sizes, ids, names)
        checked = self._checked(Decoded(rows, problems))
        return Decoded(*converted(*checked, self._resolved.logical_types))

    @abc.abstractmethod
    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        """Return the rows; problems go into the faults of the messages."""

    def _checked(self, decoded: Decoded) -> Decoded:
        """Refuse messages that decoding alone takes; called before values are converted to their logical types."""
        return decoded

    def _filled(self, messages: Messages, walk: Callable[[int, Sink], int]) -> pa.StructArray:
        """Let a kernel put all messages; return the rows."""
        return arrow_array(self._columns, filled(self._columns, len(messages), walk))

    def _names(self) -> Sequence[str]:
        """Return what faults call their nodes: here, columns."""
        return [column.path for column in self._columns]

    def _refuse_unknown(self, messages: Messages, ids: Ints) -> None:
        for one in np.unique(ids):
            if one >= 0 and self._writers[int(one)] is None:
                refuse(messages, np.flatnonzero(ids == one), Problem.UNKNOWN_SCHEMA)

    def _refused(self, why: str) -> int:
        self._refusals.append(why)
        return len(self._refusals) - 1
