"""Versions of base tables, and the position that each shows: what live views choose from.

All of it is in the tables' own commits; this is where it is found without opening them. Notes are facts that do not
change: what a crash left out is noted again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import TableSchema
from penstock.positions import Lsn

if TYPE_CHECKING:
    from penstock.catalog.store import Catalog

__all__ = ["BaseVersion", "Bases"]


@dataclass(frozen=True)
class BaseVersion:
    """This Delta version of a base table shows this position, with these columns."""

    version: int
    position: Lsn
    schema: TableSchema
    memory: str | None = None
    """What is to be known of all before it, to go on from there: of some tables that topics make."""


class Bases:
    """The versions that a catalog knows; tables are named by their source and their local name."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def note(self, source: str, local: str, base: BaseVersion) -> None:
        """Note which position a Delta version shows."""
        with self._catalog.transaction() as db:
            row = (source, local, base.version, base.position, base.schema.to_bytes(), base.memory)
            db.execute("INSERT OR IGNORE INTO base_version VALUES (?, ?, ?, ?, ?, ?)", row)

    def newest(self, source: str, local: str, upto: Lsn) -> BaseVersion | None:
        """Return the newest version of a table that shows nothing after `upto`."""
        query = (
            "SELECT version, position, columns, memory FROM base_version WHERE source=? AND local=? AND position <= ?"
            " ORDER BY position DESC, version DESC LIMIT 1"
        )
        with self._catalog.connected() as db:
            row = db.execute(query, (source, local, upto)).fetchone()
        return None if row is None else BaseVersion(row[0], Lsn(row[1]), TableSchema.from_bytes(row[2]), row[3])

    def positions(self, source: str, upto: Lsn) -> dict[str, Lsn]:
        """Return where the newest base of each table up to a position stands, by local name."""
        query = "SELECT local, max(position) FROM base_version WHERE source=? AND position <= ? GROUP BY local"
        with self._catalog.connected() as db:
            return {local: Lsn(position) for local, position in db.execute(query, (source, upto))}

    def first(self, source: str, local: str) -> Lsn | None:
        """Return the first position that a table is known to have shown; None before its copy is whole."""
        query = "SELECT min(position) FROM base_version WHERE source=? AND local=?"
        with self._catalog.connected() as db:
            (found,) = db.execute(query, (source, local)).fetchone()
        return None if found is None else Lsn(found)

    def known(self, source: str, local: str, version: int, position: Lsn) -> BaseVersion | None:
        """Return a version of a table, if it is known to show this position."""
        query = "SELECT columns, memory FROM base_version WHERE source=? AND local=? AND version=? AND position=?"
        with self._catalog.connected() as db:
            row = db.execute(query, (source, local, version, position)).fetchone()
        return None if row is None else BaseVersion(version, position, TableSchema.from_bytes(row[0]), row[1])

    def oldest_version(self, source: str, local: str) -> int | None:
        """Return the oldest Delta version of a table that somebody may still read."""
        with self._catalog.connected() as db:
            found = db.execute("SELECT min(version) FROM base_version WHERE source=? AND local=?", (source, local))
            oldest = found.fetchone()[0]
        return None if oldest is None else int(oldest)

    def forget_older(self, source: str, valid: Lsn) -> None:
        """Forget the versions that no position from `valid` on needs."""
        query = (
            "DELETE FROM base_version WHERE source=?1 AND position < (SELECT max(position) FROM base_version newer"
            " WHERE newer.source=?1 AND newer.local=base_version.local AND newer.position <= ?2)"
        )
        with self._catalog.transaction() as db:
            db.execute(query, (source, valid))
