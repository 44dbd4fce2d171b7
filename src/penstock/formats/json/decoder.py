"""Decoder of JSON messages, by the plan of a format: a rule for each column, and the keys of each struct."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.column_writer import ColumnWriter
from penstock.formats.columns import Columns, Store
from penstock.formats.decoder import Decoded, Decoder
from penstock.formats.format import Extra, JsonFormat, ResolvedFormat
from penstock.formats.jit import Ints
from penstock.formats.json.connect_schema import reject_changed_schemas
from penstock.formats.json.kernel import LIST, MAP, RAW, STRUCT, Plan, walk_all
from penstock.formats.json.strings import text_hash
from penstock.formats.json.tape import MAX_DEPTH, SEEN, TOKEN, Tape
from penstock.formats.memory import WORD, address
from penstock.formats.messages import Messages
from penstock.formats.schema_registry import WriterSchemas
from penstock.formats.text_writer import scalar_rule

__all__ = ["JsonDecoder", "Scratch", "Tables", "json_plan"]


class Tables(NamedTuple):
    """A plan, and the memory that holds it."""

    rules: Ints
    keys: Ints
    constants: npt.NDArray[np.uint8]
    refuse_extra: bool
    root: int

    def plan(self, slots: Ints) -> Plan:
        """Return the plan for kernels; keep these tables alive while it is in use."""
        rules, keys, constants = address(self.rules), address(self.keys), address(self.constants)
        return Plan(rules, keys, constants, address(slots), self.refuse_extra, self.root)


def json_plan(columns: Columns, *, raw: Collection[str], wrapped: bool, refuse_extra: bool) -> Tables:
    """Build the plan; the columns in `raw` accept any value and hold its JSON text."""
    rules: list[list[int]] = []
    keys: list[list[int]] = []
    constants = bytearray()
    for column in columns:
        first, count = 0, 0
        if column.store == Store.STRUCT:
            rule, first, count = STRUCT, len(keys), len(column.children)
            for child, field in zip(column.children, column.type, strict=True):
                name = field.name.encode()
                keys.append([_hash(name), len(constants), len(name), child])
                constants += name
        elif column.store in (Store.LIST, Store.MAP):
            rule = LIST if column.store == Store.LIST else MAP
        elif column.path in raw:
            rule = RAW
        else:
            rule, first, count = scalar_rule(column.type, column.path)
        rules.append([rule, first, count, column.children[0] if column.children else 0])
    return Tables(
        np.array(rules, np.int64),
        np.array(keys, np.int64).reshape(-1, 4),
        np.frombuffer(bytes(constants) + b"\0", np.uint8),
        refuse_extra,
        columns[0].children[0] if wrapped else 0,
    )


def _hash(name: bytes) -> int:
    text = np.frombuffer(name + b"\0", np.uint8)
    return text_hash(address(text), address(text) + len(name))


class Scratch:
    """Memory for the tokens of one message at a time, sized for the largest message of a batch."""

    def __init__(self, messages: Messages, keys: int) -> None:
        self._rows = np.empty((messages.longest + 2, TOKEN // WORD), np.int64)
        self._open = np.empty(MAX_DEPTH, np.int64)
        self._seen = np.zeros((1 << max(4, messages.longest.bit_length()), SEEN // WORD), np.int64)
        self._stamp = np.zeros(1, np.int64)
        self._unescaped = np.empty(messages.extent, np.uint8)
        self.slots = np.empty(keys + 1, np.int64)
        """Memory for the tokens of the keys of open structs."""
        self.tape = Tape(
            address(self._rows),
            address(self._open),
            address(self._seen),
            len(self._seen) - 1,
            address(self._stamp),
            address(self._unescaped) - messages.first,
        )


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
