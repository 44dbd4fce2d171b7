"""The publication: which tables the stream carries. Ours is made with the source and dropped with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from penstock.model import TableName

__all__ = ["create_publication", "drop_publication", "find_publication", "published_tables"]


def find_publication(connection: psycopg.Connection[Any], name: str) -> bool:
    """Say whether a publication of this name exists in the database."""
    return connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is not None


def published_tables(connection: psycopg.Connection[Any], name: str) -> set[TableName] | None:
    """Return the tables that a publication holds; None when there is no such publication."""
    if not find_publication(connection, name):
        return None
    rows = connection.execute("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,))
    return {TableName(*row) for row in rows}


def create_publication(connection: psycopg.Connection[Any], name: str, tables: Sequence[TableName]) -> None:
    """Publish exactly these tables, every kind of change."""
    listed = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(table.schema, table.name)) for table in tables)
    options = "WITH (publish = 'insert, update, delete, truncate')"
    connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE {} " + options).format(sql.Identifier(name), listed))


def drop_publication(connection: psycopg.Connection[Any], name: str) -> bool:
    """Remove a publication if it is there; say whether it was."""
    there = find_publication(connection, name)
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return there
