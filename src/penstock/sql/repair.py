"""``REPAIR source.table [WHERE KEY IN (key, …) | WHERE condition]``.

Keys are values, or lists of values in parentheses where the key has several columns. A number stays the text that it
is, so that nothing is rounded. A condition is for Postgres to read: it is taken as it is written.
"""

from __future__ import annotations

from typing import Any

from penstock.sql.cursor import StatementCursor
from penstock.sql.statements import Repairing

__all__ = ["read_repair"]

_USAGE = "REPAIR source.table WHERE KEY IN (1, 2); or … WHERE condition; or REPAIR source.table; for all rows."


def read_repair(cursor: StatementCursor) -> Repairing:
    """Read what follows ``REPAIR``."""
    cursor.usage(_USAGE)
    source = cursor.name("source")
    cursor.expects(".")
    table = [cursor.part()]
    if cursor.takes("."):
        table.append(cursor.part())
    if not cursor.takes("WHERE"):
        return Repairing(source, ".".join(table))
    if cursor.takes("KEY", "IN"):
        return Repairing(source, ".".join(table), keys=_keys(cursor))
    if cursor.is_at_end():
        message = "there is no condition behind WHERE"
        raise cursor.wrong(message, f"Write: {_USAGE}")
    return Repairing(source, ".".join(table), where=cursor.rest())


def _keys(cursor: StatementCursor) -> list[Any]:
    """Read ``(1, 'x')`` or ``((1, 'x'), (2, 'y'))``."""
    cursor.expects("(")
    keys = [_key(cursor)]
    while cursor.takes(","):
        keys.append(_key(cursor))
    cursor.expects(")")
    return keys


def _key(cursor: StatementCursor) -> Any:
    if not cursor.takes("("):
        return _value(cursor)
    values = [_value(cursor)]
    while cursor.takes(","):
        values.append(_value(cursor))
    cursor.expects(")")
    return values


def _value(cursor: StatementCursor) -> Any:
    if cursor.is_text():
        return cursor.text()
    for word, value in (("TRUE", True), ("FALSE", False)):
        if cursor.takes(word):
            return value
    if cursor.words():
        what = "a value of the key"
        raise cursor.expected(what)
    return cursor.number()
