"""Quoted identifiers in SQL for Postgres."""

from __future__ import annotations

from psycopg import sql

from penstock.model import TableName

__all__ = ["quoted", "quoted_table"]


def quoted(*parts: str) -> str:
    """Return a quoted SQL identifier."""
    return sql.Identifier(*parts).as_string(None)


def quoted_table(table: TableName) -> str:
    """Return the quoted, qualified name of a table."""
    return quoted(table.schema, table.name)
