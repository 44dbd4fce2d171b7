"""Keys of rows in SQL: ranges of them, and lists. Postgres alone compares them, by the collation of its columns.

A key travels as the texts that Postgres prints of its columns, and goes back as literals cast to their types. So every
type and every collation is right, and nothing here has to know an order. Of a list, Postgres says what its values are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from penstock.errors import UsageError
from penstock.sources.postgres.captured import CapturedTable

__all__ = ["Key", "KeyColumns", "key_of", "key_type", "printed"]

Key = tuple[str, ...]
"""The values of a key's columns, each as the text that Postgres prints."""

_TYPES = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
 WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.attisdropped
"""


@dataclass(frozen=True)
class KeyColumns:
    """The columns of a table's key, with their types as Postgres writes them."""

    names: tuple[str, ...]
    types: tuple[str, ...]

    def listed(self) -> sql.Composed:
        """Return ``"a", "b"``: also an ORDER BY."""
        return sql.SQL(", ").join(map(sql.Identifier, self.names))

    def row(self) -> sql.Composed:
        """Return ``("a", "b")``."""
        return sql.SQL("({})").format(self.listed())

    def literal(self, key: Key) -> sql.Composed:
        """Return a key as a row of literals."""
        casts = (sql.SQL(f"CAST({{}} AS {kind})").format(v) for v, kind in zip(key, self.types, strict=True))
        return sql.SQL("({})").format(sql.SQL(", ").join(casts))

    def between(self, after: Key | None, upto: Key | None) -> sql.Composable:
        """Return the condition of a range (after, upto]; None is no bound."""
        conditions: list[sql.Composable] = [sql.SQL("true")]
        if after is not None:
            conditions.append(sql.SQL("{} > {}").format(self.row(), self.literal(after)))
        if upto is not None:
            conditions.append(sql.SQL("{} <= {}").format(self.row(), self.literal(upto)))
        return sql.SQL(" AND ").join(conditions)

    def among(self, keys: Sequence[Key]) -> sql.Composed:
        """Return the condition of a list."""
        return sql.SQL("{} IN ({})").format(self.row(), sql.SQL(", ").join(map(self.literal, keys)))


def key_type(connection: psycopg.Connection[Any], table: CapturedTable) -> KeyColumns:
    """Ask Postgres what the columns of a table's key are."""
    found = dict(connection.execute(_TYPES, (table.oid, list(table.key))).fetchall())
    return KeyColumns(table.key, tuple(found.get(name, "text") for name in table.key))


def key_of(given: object, names: Sequence[str]) -> Key:
    """Read a key as people give it: a value, a list of values, or an object with the names of the columns."""
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise _not_a_key(names)
        values = [given[name] for name in names]
    else:
        values = list(given) if isinstance(given, list | tuple) else [given]
    if len(values) != len(names) or any(value is None or isinstance(value, dict | list) for value in values):
        raise _not_a_key(names)
    return tuple(map(printed, values))


def printed(value: object) -> str:
    """Print a value so that Postgres reads it back."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes() | bytearray() | memoryview():
            return "\\x" + bytes(value).hex()
        case float() | int() | Decimal():
            return str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case _:
            return str(value)


def _not_a_key(names: Sequence[str]) -> UsageError:
    one = "[1, 2]" if len(names) == 1 else '[{"' + '": …, "'.join(names) + '": …}]'
    return UsageError(f"a key of this table has a value for each of: {', '.join(names)}", f"Write keys like {one}.")
