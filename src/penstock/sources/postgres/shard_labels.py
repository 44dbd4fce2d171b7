"""Labels for the databases of a sharded source: the shortest part of the connection that differs between all of them.

::

    database          s1, s2                               several databases, on one server or on many
    host              db1.example.com, db2.example.com     the same database on several servers
    host:port         localhost:5432, localhost:5433       several servers on one machine
    host:port/name    db1:5432/s1, db1:5432/s2, db2:5432/s1

Rows have the label in the column `penstock.model.SHARD`. It is stored with the source and does not change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from psycopg.conninfo import conninfo_to_dict

from penstock.errors import UsageError
from penstock.sources.postgres.connection import parse_url, place

__all__ = ["check_connections", "shard_labels", "shard_suffixes"]

_LONGEST_SUFFIX = 20


def check_connections(connections: Sequence[str]) -> tuple[str, ...]:
    """Validate the connections of a sharded source: at least two, each database once."""
    found = tuple(parse_url(connection) for connection in connections)
    if len(found) < 2:
        message = f"a sharded source requires at least two databases, but has {'one' if found else 'none'}"
        raise UsageError(message, "Name two or more databases, or use CONNECTION for a single database.")
    places = [place(connection) for connection in found]
    twice = sorted({where for where in places if places.count(where) > 1})
    if twice:
        message = f"database {twice[0]} is listed twice"
        raise UsageError(message, "List each shard once.")
    return found


def shard_labels(connections: Sequence[str]) -> list[str]:
    """Return the label of each shard."""
    tried = ([label(connection) for connection in connections] for label in (_database, _host, _server))
    return next((labels for labels in tried if _differ(labels)), [place(connection) for connection in connections])


def shard_suffixes(labels: Sequence[str]) -> list[str]:
    """Convert labels to suffixes for names of sources; number them if two would be equal."""
    plain = [re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")[:_LONGEST_SUFFIX].strip("_") for label in labels]
    if all(plain) and _differ(plain):
        return plain
    return [f"{name}_{number}".strip("_") for number, name in enumerate(plain, 1)]


def _differ(named: Sequence[str]) -> bool:
    return len({name.lower() for name in named}) == len(named)


def _database(connection: str) -> str:
    given = conninfo_to_dict(connection)
    return str(given.get("dbname") or given.get("service") or given.get("user") or "")


def _host(connection: str) -> str:
    given = conninfo_to_dict(connection)
    return str(given.get("host") or given.get("hostaddr") or given.get("service") or "localhost")


def _server(connection: str) -> str:
    return place(connection).rpartition("/")[0]
