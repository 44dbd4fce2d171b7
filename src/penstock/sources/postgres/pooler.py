"""Connection poolers: recognised, and named.

Replication needs Postgres itself. PgBouncer and its like refuse the parameters of our connections, most of the time
(see `penstock.sources.postgres.refusals`). One that lets them through is still no Postgres: it makes up the process
id that it gives to its clients, and `pg_backend_pid` gives another one. Some proxies of cloud providers do so as well,
but keep sessions whole and carry replication: they are told apart by whether the settings of our session hold, and a
replication connection is opened in any case.
"""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.sources.findings import Finding, error, warning
from penstock.sources.postgres.refusals import POOLER_REMEDY

__all__ = ["find_pooler"]

_SESSION = "SELECT pg_backend_pid(), current_setting('IntervalStyle'), current_setting('extra_float_digits')"
_PINNED = ("iso_8601", "3")
"""What our sessions are given when they are opened."""


def find_pooler(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Return an error if this connection ends at a pooler; a proxy that keeps our session whole is only told."""
    row = connection.execute(_SESSION).fetchone()
    if row is None or row[0] == connection.pgconn.backend_pid:
        return []
    if row[1:] == _PINNED:
        why = "a proxy stands between here and Postgres: sessions must not be shared there"
        return [warning("connection", why, POOLER_REMEDY)]
    why = "a connection pooler (like PgBouncer) stands between here and Postgres; it cannot carry a change stream"
    return [error("connection", why, POOLER_REMEDY)]
