"""Delta versions of base tables, and the position of each, from which live views choose.

The Delta commits of the tables contain the same information; the catalog makes it available without opening them.
Entries are immutable, and an entry that a crash prevented is written later.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog.file import CatalogFile
from penstock.model import TableSchema
from penstock.positions import Lsn

__all__ = ["BaseVersion", "Bases", "KeptBase"]


@dataclass(frozen=True)
class BaseVersion:
    """A Delta version of a base table, its position and its columns."""

    version: int
    position: Lsn
    schema: TableSchema
    memory: str | None = None
    """State of all messages before this position that apply needs to resume; only some tables of topics have it."""


@dataclass(frozen=True)
class KeptBase:
    """The last consistent state of a table that is being captured again.

    No row changed in (position, until], so this Delta version is the table at every position from `position` to
    `until`. The log is not needed, and no longer has the changes of the table up to there.
    """

    version: int
    position: Lsn
    until: Lsn
    schema: TableSchema


class Bases:
    """The base versions in a catalog; a table is identified by its source and its local name."""

    def __init__(self, catalog: CatalogFile) -> None:
        self._catalog = catalog

    def note(self, source: str, local: str, base: BaseVersion) -> None:
        """Record the position of a Delta version."""
        with self._catalog.transaction() as db:
            row = (source, local, base.version, base.position, base.schema.to_bytes(), base.memory)
            db.execute("INSERT OR IGNORE INTO base_version VALUES (?, ?, ?, ?, ?, ?)", row)

    def newest(self, source: str, local: str, upto: Lsn) -> BaseVersion | None:
        """Return the newest version of a table whose position is not after `upto`."""
        query = (
            "SELECT version, position, columns, memory FROM base_version WHERE source=? AND local=? AND position <= ?"
            " ORDER BY position DESC, version DESC LIMIT 1"
        )
        with self._catalog.connected() as db:
            row = db.execute(query, (source, local, upto)).fetchone()
        return None if row is None else BaseVersion(row[0], Lsn(row[1]), TableSchema.from_bytes(row[2]), row[3])

    def kept(self, source: str) -> dict[str, KeptBase]:
        """Return the last consistent states of tables that are being captured again, by local name."""
        query = "SELECT local, version, position, until, columns FROM kept_base WHERE source=?"
        with self._catalog.connected() as db:
            rows = db.execute(query, (source,)).fetchall()
        return {r[0]: KeptBase(r[1], Lsn(r[2]), Lsn(r[3]), TableSchema.from_bytes(r[4])) for r in rows}

    def positions(self, source: str, upto: Lsn) -> dict[str, Lsn]:
        """Return the position of each table's newest base at or before `upto`, by local name."""
        query = "SELECT local, max(position) FROM base_version WHERE source=? AND position <= ? GROUP BY local"
        with self._catalog.connected() as db:
            return {local: Lsn(position) for local, position in db.execute(query, (source, upto))}

    def note_rows(self, source: str, local: str, rows: int) -> None:
        """Record the number of rows of a table."""
        with self._catalog.transaction() as db:
            db.execute("INSERT OR REPLACE INTO row_count VALUES (?, ?, ?)", (source, local, rows))

    def rows(self, source: str) -> dict[str, int]:
        """Return the number of rows of each table when it was last counted, by local name."""
        with self._catalog.connected() as db:
            return dict(db.execute("SELECT local, rows FROM row_count WHERE source=?", (source,)).fetchall())

    def first(self, source: str, local: str) -> Lsn | None:
        """Return the first recorded position of a table; None before its initial snapshot is complete."""
        query = "SELECT min(position) FROM base_version WHERE source=? AND local=?"
        with self._catalog.connected() as db:
            (found,) = db.execute(query, (source, local)).fetchone()
        return None if found is None else Lsn(found)

    def known(self, source: str, local: str, version: int, position: Lsn) -> BaseVersion | None:
        """Return a version of a table, if it is recorded with this position."""
        query = "SELECT columns, memory FROM base_version WHERE source=? AND local=? AND version=? AND position=?"
        with self._catalog.connected() as db:
            row = db.execute(query, (source, local, version, position)).fetchone()
        return None if row is None else BaseVersion(version, position, TableSchema.from_bytes(row[0]), row[1])

    def oldest_version(self, source: str, local: str) -> int | None:
        """Return the oldest Delta version of a table that a reader may still need."""
        with self._catalog.connected() as db:
            found = db.execute("SELECT min(version) FROM base_version WHERE source=? AND local=?", (source, local))
            oldest = found.fetchone()[0]
        return None if oldest is None else int(oldest)

    def forget_older(self, source: str, valid: Lsn) -> None:
        """Delete the versions that no position from `valid` on needs."""
        query = (
            "DELETE FROM base_version WHERE source=?1 AND position < (SELECT max(position) FROM base_version newer"
            " WHERE newer.source=?1 AND newer.local=base_version.local AND newer.position <= ?2)"
        )
        with self._catalog.transaction() as db:
            db.execute(query, (source, valid))
