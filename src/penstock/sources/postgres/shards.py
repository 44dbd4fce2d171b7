"""What tells the databases of a sharded source apart: a readable word for each, the first that is different for all.

::

    database          s1, s2                               several databases, on one server or on many
    host              db1.example.com, db2.example.com     the same database on several servers
    host:port         localhost:5432, localhost:5433       several servers on one machine
    host:port/name    db1:5432/s1, db1:5432/s2, db2:5432/s1

That word is what rows have in the column `penstock.model.SHARD`. It is noted with the source and does not change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from psycopg.conninfo import conninfo_to_dict

from penstock.errors import UsageError
from penstock.sources.postgres.connection import parse_url, place

__all__ = ["check_connections", "shard_suffixes", "shard_words"]

_LONGEST_SUFFIX = 20


def check_connections(connections: Sequence[str]) -> tuple[str, ...]:
    """Hold the connections of shards to sense: two at least, each database once."""
    found = tuple(parse_url(connection) for connection in connections)
    if len(found) < 2:
        message = f"a source of shards was given {'one database' if found else 'no database'}"
        raise UsageError(message, "Give two or more; or a source of one database its connection.")
    places = [place(connection) for connection in found]
    twice = sorted({where for where in places if places.count(where) > 1})
    if twice:
        message = f"the database {twice[0]} was given twice"
        raise UsageError(message, "Give each shard once.")
    return found


def shard_words(connections: Sequence[str]) -> list[str]:
    """Return what tells each shard from the others, for people and in rows."""
    tried = ([word(connection) for connection in connections] for word in (_database, _host, _server))
    return next((words for words in tried if _differ(words)), [place(connection) for connection in connections])


def shard_suffixes(words: Sequence[str]) -> list[str]:
    """Make such words fit for names of sources; where that makes two of them the same, they are numbered."""
    plain = [re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")[:_LONGEST_SUFFIX].strip("_") for word in words]
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
