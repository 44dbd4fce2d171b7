"""How far the first copy is, as Postgres counts it."""

from __future__ import annotations

import psycopg

from penstock.errors import PenstockError
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.copy import copied_rows
from penstock.sources.postgres.spec import PostgresInstanceConfig

__all__ = ["copy_progress"]


def copy_progress(instance: PostgresInstanceConfig) -> dict[str, tuple[int, int]]:
    """Return rows copied and estimated, of each table that is being copied; nothing where Postgres cannot be asked."""
    estimates = {table.name: table.estimated_rows for table in instance.tables}
    try:
        with connect(instance.connection) as connection:
            copied = copied_rows(connection, list(estimates))
    except (PenstockError, psycopg.Error):
        return {}
    return {str(name): (rows, max(rows, estimates[name])) for name, rows in copied.items()}
