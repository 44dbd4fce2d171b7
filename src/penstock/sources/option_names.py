"""Parse names of tables and columns in options: ``schema.table``, ``… AS alias``, ``schema.table.column``.

A part that contains a dot, a space or a quote must be double-quoted, as in SQL. Unlike SQL, unquoted parts are not
folded to lower case: names are compared case-sensitively, and the error for an unknown name suggests the nearest one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.model import TableName

__all__ = ["ColumnName", "TableChoice", "choice_text", "parse_column", "parse_table"]

_PART = r'(?:"(?:[^"]|"")+"|[^\s".]+)'
_TABLE = re.compile(rf"\s*({_PART})\.({_PART})(?:\s+AS\s+({_PART}))?\s*", re.IGNORECASE)
_COLUMN = re.compile(rf"\s*({_PART})\.({_PART})\.({_PART})\s*")


@dataclass(frozen=True)
class TableChoice:
    """A table named in the options, and the name that it gets downstream, if another."""

    table: TableName
    alias: str | None = None


@dataclass(frozen=True, order=True)
class ColumnName:
    """A column of an upstream table."""

    table: TableName
    column: str

    def __str__(self) -> str:
        """Return ``schema.table.column``, for messages."""
        return f"{self.table}.{self.column}"


def parse_table(text: str) -> TableChoice:
    """Parse ``schema.table`` or ``schema.table AS alias``."""
    found = _TABLE.fullmatch(text)
    if found is None:
        message = f"invalid table name {text!r}"
        raise UsageError(message, "Write schema.table [AS alias]; double-quote parts that contain a dot.")
    schema, name, alias = (part and _unquoted(part) for part in found.groups())
    if alias is not None and ("." in alias or "/" in alias):
        message = f"invalid table alias {alias!r}"
        raise UsageError(message, "Use a name without dots and slashes.")
    return TableChoice(TableName(schema, name), alias)


def choice_text(choice: TableChoice) -> str:
    """Format a choice so that `parse_table` can parse it."""
    parts = f"{_quote_if_needed(choice.table.schema)}.{_quote_if_needed(choice.table.name)}"
    return f"{parts} AS {_quote_if_needed(choice.alias)}" if choice.alias else parts


def parse_column(text: str) -> ColumnName:
    """Parse ``schema.table.column``."""
    found = _COLUMN.fullmatch(text)
    if found is None:
        message = f"invalid column name {text!r}"
        raise UsageError(message, "Write schema.table.column; double-quote parts that contain a dot.")
    schema, table, column = (_unquoted(part) for part in found.groups())
    return ColumnName(TableName(schema, table), column)


def _quote_if_needed(part: str) -> str:
    return part if re.fullmatch(r'[^\s".]+', part) else '"' + part.replace('"', '""') + '"'


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
