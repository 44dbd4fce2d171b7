"""Is everything still published? The stream does not say when it stops carrying a table.

A table that is taken out of the publication, dropped, or filtered otherwise just sends no more (or other) changes; rows
that come or go with a partition send none. So the publication is looked at, at each connect and every few seconds: what
is not as it was ends its tables. The error stands at the last position at which all was well, as nobody can tell what
was missed after it.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from penstock.errors import DefiniteError, TableError
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.publication import Publication, read_publication

__all__ = ["PublicationWatch"]

_SECONDS = 5.0
_NEEDED = frozenset({"insert", "update", "delete"})
_OIDS = "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s)"
_LEAVES = """
SELECT t.relid::oid::bigint, r.xmin = i.xmin FROM pg_partition_tree(%s::oid::regclass) t
  JOIN pg_type r ON r.typrelid = t.relid JOIN pg_inherits i ON i.inhrelid = t.relid WHERE t.isleaf
"""


class PublicationWatch:
    """Looks at a source's publication now and then."""

    def __init__(self, config: PostgresInstanceConfig, proven: Lsn) -> None:
        self._config = config
        self._proven = dict.fromkeys((table.name for table in config.tables), proven)
        """Up to where all changes of a table were published; without tables that are in trouble."""
        self._next = 0.0

    def due(self) -> bool:
        """Say whether it is time to look again."""
        return time.monotonic() >= self._next

    def look(self, connection: psycopg.Connection[Any], durable: Lsn) -> list[TableError]:
        """Return an error for each table whose changes are no longer all sent, once.

        Where there is none, `durable` is proven: what Postgres sent up to there was committed before this look.
        """
        self._next = time.monotonic() + _SECONDS
        publication = read_publication(connection, self._config.publication)
        if publication is None:
            since = min(self._proven.values(), default=durable)
            message = f"the publication {self._config.publication} is gone: changes since {since} may be lost"
            raise DefiniteError(
                message, f"Drop the source with `penstock drop {self._config.source}` and capture it again."
            )
        self._require_marks(publication)
        tables = [table for table in self._config.tables if table.name in self._proven]
        there = {oid for (oid,) in connection.execute(_OIDS, ([table.oid for table in tables],))}
        troubled = [(table, _trouble(connection, table, publication, there)) for table in tables]
        errors = [self._error(table, why) for table, why in troubled if why is not None]
        self._proven = {table.name: max(self._proven[table.name], durable) for table, why in troubled if why is None}
        return errors

    def _require_marks(self, publication: Publication) -> None:
        """Without its watermarks and heartbeats in the stream, nobody would notice who writes there."""
        for table in self._config.meta_tables():
            if publication.table(table) is None:
                message = f"{table} is gone, or not in the publication {publication.name} any more"
                remedy = f"Drop the source with `penstock drop {self._config.source}` and capture it again."
                raise DefiniteError(message, remedy)

    def _error(self, table: CapturedTable, why: str) -> TableError:
        remedy = (
            f"Mend that, then capture the table anew: ALTER SOURCES {self._config.source} RETRY TABLE {table.name};"
        )
        return TableError(
            str(table.name), self._proven[table.name] + 1, f"capture of {table.name} stopped: {why}", remedy
        )


def _trouble(
    connection: psycopg.Connection[Any], table: CapturedTable, publication: Publication, there: set[int]
) -> str | None:
    """Say what is no longer as it was."""
    if table.oid not in there:
        return "it was dropped upstream"
    published = publication.table(table.name)
    if published is None:
        return f"it is not in the publication {publication.name} any more, so its changes are not sent"
    if published.row_filter != table.row_filter:
        return f"its row filter in the publication {publication.name} changed, so other rows are sent than were copied"
    missing = _NEEDED - publication.operations
    if missing:
        return f"the publication {publication.name} does not publish {' or '.join(sorted(missing))} any more"
    return _other_partitions(connection, table) if table.partitioned else None


def _other_partitions(connection: psycopg.Connection[Any], table: CapturedTable) -> str | None:
    """Say whether rows came or went with a partition: nothing of that is in the stream.

    One that was created as a partition (its row type in the catalog is as old as its membership) was empty then.
    """
    leaves = dict(connection.execute(_LEAVES, (table.oid,)).fetchall())
    if set(table.leaves) - set(leaves):
        return "a partition was detached or dropped upstream, and its rows with it"
    if any(not made_so for leaf, made_so in leaves.items() if leaf not in table.leaves):
        return "a table was attached as a partition upstream, and its rows with it"
    return None
