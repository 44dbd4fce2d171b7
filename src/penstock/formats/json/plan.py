"""How JSON messages become columns: a rule per column, and the keys of each struct."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from penstock.formats.columns import Columns, Store
from penstock.formats.json.kernel import EXPECTED, LIST, MAP, RAW, STRUCT, Plan
from penstock.formats.json.tape import text_hash
from penstock.formats.text_put import scalar_rule

__all__ = ["KINDS", "json_plan"]

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
"""Words for what was found and, from `EXPECTED` on, for what was expected."""
assert len(_FOUND) == EXPECTED


def json_plan(columns: Columns, *, raw: Collection[str], wrapped: bool, refuse_extra: bool) -> Plan:
    """Make the plan; the columns named in `raw` take any value, as its JSON text."""
    rules: list[list[int]] = []
    keys: list[list[int]] = []
    constants = bytearray()
    for column in columns:
        first, count = 0, 0
        if column.store == Store.STRUCT:
            rule, first, count = STRUCT, len(keys), len(column.children)
            for child, field in zip(column.children, column.type, strict=True):
                name = field.name.encode()
                hashed = text_hash(np.frombuffer(name + b"\0", np.uint8), 0, len(name))
                keys.append([hashed, len(constants), len(name), child])
                constants += name
        elif column.store in (Store.LIST, Store.MAP):
            rule = LIST if column.store == Store.LIST else MAP
        elif column.path in raw:
            rule = RAW
        else:
            rule, first, count = scalar_rule(column.type, column.path)
        rules.append([rule, first, count, column.children[0] if column.children else 0])
    return Plan(
        np.array(rules, np.int64),
        np.array(keys, np.int64).reshape(-1, 4),
        np.frombuffer(bytes(constants) or b"\0", np.uint8),
        np.zeros(len(keys) + 1, np.int64),
        refuse_extra,
        columns[0].children[0] if wrapped else 0,
    )
