"""Plan of a JSON format: a rule per column, and the keys of each struct."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Columns, Store
from penstock.formats.jit import Ints
from penstock.formats.json.kernel import EXPECTED, LIST, MAP, RAW, STRUCT, Plan
from penstock.formats.json.strings import text_hash
from penstock.formats.json.tape import MAX_DEPTH, SEEN, TOKEN, Tape
from penstock.formats.memory import WORD, address
from penstock.formats.messages import Messages
from penstock.formats.text_writer import scalar_rule

__all__ = ["KINDS", "Scratch", "Tables", "json_plan"]

_FOUND = ["", "an object", "an array", "a string", "a number", "true", "false", "null", "a key", ""]
_WANTED = {
    1: "true or false",
    2: "an integer",
    3: "a number",
    4: "a number",
    5: "a string",
    6: "a date as a string",
    7: "a time as a string",
    8: "a time as a string",
    STRUCT: "an object",
    LIST: "an array",
    MAP: "an object",
}
KINDS = _FOUND + [_WANTED.get(rule, "") for rule in range(RAW + 1)]
"""Words for the value found and, from index `EXPECTED` on, for the value expected."""
assert len(_FOUND) == EXPECTED


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
