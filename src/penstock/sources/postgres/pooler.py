"""Connection poolers: recognised, and named.

Replication needs Postgres itself. PgBouncer and its like refuse the parameters of our connections, most of the time
(see `penstock.sources.postgres.refusals`). One that lets them through is still no Postgres: it makes up the process
id that it gives to its clients, and `pg_backend_pid` gives another one.
"""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.sources.postgres.findings import Finding, error
from penstock.sources.postgres.refusals import POOLER_REMEDY

__all__ = ["find_pooler"]


def find_pooler(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Return an error if this connection ends at a pooler."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] == connection.pgconn.backend_pid:
        return []
    why = "a connection pooler (like PgBouncer) stands between here and Postgres; it cannot carry a change stream"
    return [error("connection", why, POOLER_REMEDY)]
