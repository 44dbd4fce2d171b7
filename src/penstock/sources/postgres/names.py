"""Names of tables and columns as users write them: ``schema.table``, ``… AS alias``, ``schema.table.column``.

A part that has a dot, a space or a quote in it is written in double quotes, as in SQL. Unlike in SQL, the case of a
part without quotes is kept: names are compared as they are, and a wrong one is answered with the nearest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import sql

from penstock.errors import UsageError
from penstock.model import TableName

__all__ = [
    "ColumnName",
    "TableChoice",
    "choice_text",
    "parse_column",
    "parse_table",
    "quoted",
    "quoted_table",
]

_PART = r'(?:"(?:[^"]|"")+"|[^\s".]+)'
_TABLE = re.compile(rf"\s*({_PART})\.({_PART})(?:\s+AS\s+({_PART}))?\s*", re.IGNORECASE)
_COLUMN = re.compile(rf"\s*({_PART})\.({_PART})\.({_PART})\s*")


@dataclass(frozen=True)
class TableChoice:
    """A table that was asked for, and the name it shall have here."""

    table: TableName
    alias: str | None = None


@dataclass(frozen=True, order=True)
class ColumnName:
    """A column of an upstream table."""

    table: TableName
    column: str

    def __str__(self) -> str:
        """``schema.table.column``, for people."""
        return f"{self.table}.{self.column}"


def parse_table(text: str) -> TableChoice:
    """Read ``schema.table`` or ``schema.table AS alias``."""
    found = _TABLE.fullmatch(text)
    if found is None:
        message = f"{text!r} does not name a table"
        raise UsageError(message, "Write schema.table, or schema.table AS another_name; quote parts with dots.")
    schema, name, alias = (part and _plain(part) for part in found.groups())
    if alias is not None and ("." in alias or "/" in alias):
        message = f"{alias!r} cannot be the name of a table here"
        raise UsageError(message, "Use a name without dots and slashes.")
    return TableChoice(TableName(schema, name), alias)


def choice_text(choice: TableChoice) -> str:
    """Write a choice so that `parse_table` reads it."""
    parts = f"{_written(choice.table.schema)}.{_written(choice.table.name)}"
    return f"{parts} AS {_written(choice.alias)}" if choice.alias else parts


def parse_column(text: str) -> ColumnName:
    """Read ``schema.table.column``."""
    found = _COLUMN.fullmatch(text)
    if found is None:
        message = f"{text!r} does not name a column"
        raise UsageError(message, "Write schema.table.column; quote parts with dots.")
    schema, table, column = (_plain(part) for part in found.groups())
    return ColumnName(TableName(schema, table), column)


def quoted(*parts: str) -> str:
    """Quote an identifier for SQL text."""
    return sql.Identifier(*parts).as_string(None)


def quoted_table(table: TableName) -> str:
    """Quote a table's name for SQL text."""
    return quoted(table.schema, table.name)


def _written(part: str) -> str:
    return part if re.fullmatch(r'[^\s".]+', part) else '"' + part.replace('"', '""') + '"'


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
