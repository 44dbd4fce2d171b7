"""The catalog: what exists in a home, durably, in SQLite. Secrets are never in it.

A source is written here before anything is made outside, and leaves only when everything outside is gone; so a
crash in between is always seen on the next start. Several processes may use it at once.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.catalog.bases import Bases
from penstock.catalog.migrations import migrate
from penstock.catalog.progress import CopyProgress
from penstock.catalog.states import WISHES, SourceState, TableState
from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import log_at
from penstock.errors import DefiniteError, TableError, TransientError
from penstock.layout import state_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.interface import InstanceConfig
from penstock.sources.kinds import kind, kinds

__all__ = ["Catalog", "Debt", "SourceRecord", "TableRecord", "Wish", "read_instance"]

_WAL_SECONDS = 10.0


@dataclass(frozen=True)
class SourceRecord:
    """A source as the catalog holds it; spec and instance are JSON of its kind's types."""

    name: str
    kind: str
    spec: str
    instance: str
    state: SourceState
    error: str | None = None
    hint: str | None = None
    log: str | None = None
    """Where its change log is, as a URL; None for the embedded one, in the home."""
    part_of: str | None = None
    """Of a shard, the name that the user gave to all of them."""
    shard: str | None = None
    """Of a shard, what its rows have in the column `penstock.model.SHARD`."""
    keep_tables: bool = False
    """Of one that is being dropped, whether its base tables stay."""
    durable: Lsn = Lsn.ZERO
    """Of one that is being dropped by force, where its log ended."""

    @property
    def known_as(self) -> str:
        """The name that the user gave."""
        return self.part_of or self.name


@dataclass(frozen=True)
class TableRecord:
    """A table of a source: its upstream name, and the local name under which it is queried."""

    source: str
    upstream: TableName
    local: str
    state: TableState
    error: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Wish:
    """What shall become of a table: its record in that state, and the spec of its source, before and after."""

    table: TableRecord
    spec: tuple[str, str] | None = None


@dataclass(frozen=True)
class Debt:
    """What a source that was dropped by force left upstream: to be removed as soon as that can be reached.

    `instance` is JSON of its kind's type. Nobody confirmed the slot beyond `durable`: one that is further is not ours.
    """

    id: int
    source: str
    kind: str
    instance: str
    durable: Lsn
    error: str | None
    since: str


class Catalog:
    """The catalog of a home."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the home {path.parent} cannot be used: {error.strerror}"
            raise DefiniteError(message, "Use another one (--home).") from error
        with self.connected() as db:
            _use_wal(db)
            migrate(db, path.parent)

    @property
    def bases(self) -> Bases:
        """Which position each version of a base table shows."""
        return Bases(self)

    def sources(self) -> list[SourceRecord]:
        """Return all sources, by name."""
        with self.connected() as db:
            columns = "name, kind, spec, instance, state, error, hint, log, part_of, shard, keep_tables, durable"
            rows = db.execute(f"SELECT {columns} FROM source ORDER BY name")
            return [_source_record(row) for row in rows]

    def source(self, name: str) -> SourceRecord | None:
        """Look a source up."""
        return next((record for record in self.sources() if record.name == name), None)

    def parts(self, name: str) -> list[SourceRecord]:
        """Return the source of this name, or the shards of which it is made; none where there is no such source."""
        with self.connected() as db:
            given = [found for (found,) in db.execute("SELECT name FROM source ORDER BY rowid")]
        records = sorted(self.sources(), key=lambda record: given.index(record.name))
        return [record for record in records if record.name == name] or [r for r in records if r.part_of == name]

    def log(self, name: str) -> ChangeLog:
        """Return where the change log of a source is."""
        record, home = self.source(name), self._path.parent
        log = log_at(home, name, record.log if record else None)
        if record is None or not _reads_elsewhere(record.kind):
            return log
        return read_instance(record.kind, record.instance).reading(log, state_path(home, name))

    def add_sources(self, sources: Sequence[tuple[SourceRecord, Sequence[TableRecord]]]) -> None:
        """Write sources and their tables, all in one step."""
        with self.transaction() as db:
            for r, tables in sources:
                db.execute(
                    "INSERT INTO source (name, kind, spec, instance, state, log, part_of, shard)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (r.name, r.kind, r.spec, r.instance, r.state, r.log, r.part_of, r.shard),
                )
                rows = [(*_place(t), t.local, t.state, t.error, t.hint) for t in tables]
                db.executemany("INSERT INTO source_table VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def made(self, instances: Mapping[str, str]) -> None:
        """Note in one step that all that these sources need is there: they are ready, with these instances."""
        query = "UPDATE source SET state=?, instance=? WHERE name=? AND state=?"
        ready, creating = SourceState.READY, SourceState.CREATING
        with self.transaction() as db:
            db.executemany(query, [(ready, instance, name, creating) for name, instance in instances.items()])

    def set_source(
        self, name: str, state: SourceState, *, instance: str | None = None, error: str = "", hint: str = ""
    ) -> None:
        """Move a source to a state, unless it is being made or dropped by somebody else.

        A capture that outlives its parent may still report. It cannot bring back a source that is being dropped, nor
        finish one that is being created: that is for `create`, which gives the instance.
        """
        query = (
            "UPDATE source SET state=?1, error=?2, hint=?3, instance=coalesce(?4, instance) WHERE name=?5 AND"
            " (state NOT IN (?6, ?7) OR ?1 = ?7 OR (state = ?6 AND (?4 IS NOT NULL OR ?1 = ?6)))"
        )
        guarded = (SourceState.CREATING, SourceState.DROPPING)
        with self.transaction() as db:
            db.execute(query, (state, error or None, hint or None, instance, name, *guarded))

    def dropping(self, names: Sequence[str], *, keep_tables: bool = False) -> None:
        """Note in one step that these sources are to go; their base tables stay where that was ever asked for."""
        query = "UPDATE source SET state=?, error=NULL, hint=NULL, keep_tables=max(keep_tables, ?) WHERE name=?"
        with self.transaction() as db:
            db.executemany(query, [(SourceState.DROPPING, keep_tables, name) for name in names])

    def not_dropping(self, before: SourceRecord) -> None:
        """Take back that a source is to go, as nothing of it could: it is as it was `before`."""
        query = "UPDATE source SET state=?, error=?, hint=?, keep_tables=? WHERE name=? AND state=?"
        was = (before.state, before.error, before.hint, before.keep_tables, before.name, SourceState.DROPPING)
        with self.transaction() as db:
            db.execute(query, was)

    def note_source_error(self, name: str, error: str, hint: str, state: SourceState | None = None) -> None:
        """Note what is wrong with a source that runs, and the state that it has by that; else it stays what it is."""
        query = "UPDATE source SET state=coalesce(?1, state), error=?2, hint=?3 WHERE name=?4 AND state IN (?5, ?6)"
        with self.transaction() as db:
            db.execute(query, (state, error, hint or None, name, SourceState.READY, SourceState.FAILED))

    def forget_source_error(self, name: str, error: str | None = None) -> None:
        """Note that a source that runs is ready, and nothing is wrong with it: no longer this, if one is named."""
        query = (
            "UPDATE source SET state=?1, error=NULL, hint=NULL WHERE name=?2 AND state IN (?1, ?3)"
            " AND (?4 IS NULL OR error = ?4)"
        )
        with self.transaction() as db:
            db.execute(query, (SourceState.READY, name, SourceState.FAILED, error))

    def note_durable(self, name: str, durable: Lsn) -> None:
        """Note where the log of a source ended, before it is removed while something of the source stays upstream."""
        with self.transaction() as db:
            db.execute("UPDATE source SET durable=? WHERE name=?", (durable, name))

    def alter(self, specs: Mapping[str, tuple[str, str]]) -> None:
        """Note in one step what is asked of sources from now on: their specs, before and after."""
        with self.transaction() as db:
            for name, spec in specs.items():
                _change_spec(db, name, spec)

    def remove_source(self, name: str, debt: tuple[str, str, Lsn] | None = None) -> None:
        """Forget a source and everything about it; in the same step, remember the debt that it leaves upstream."""
        with self.transaction() as db:
            db.execute("DELETE FROM source WHERE name=?", (name,))
            db.execute("DELETE FROM repair WHERE source=? AND state='asked'", (name,))
            if debt is not None:
                db.execute("INSERT INTO debt (source, kind, instance, durable) VALUES (?, ?, ?, ?)", (name, *debt))

    def debts(self) -> list[Debt]:
        """Return what is still to be removed upstream, the oldest first."""
        with self.connected() as db:
            rows = db.execute(
                "SELECT id, source, kind, instance, durable, error, since FROM debt ORDER BY id"
            ).fetchall()
        return [Debt(r[0], r[1], r[2], r[3], Lsn(r[4]), r[5], r[6]) for r in rows]

    def settle(self, debt: Debt) -> None:
        """Forget a debt: nothing is left of it."""
        with self.transaction() as db:
            db.execute("DELETE FROM debt WHERE id=?", (debt.id,))

    def defer(self, debt: Debt, error: str) -> None:
        """Note why a debt could not be settled."""
        with self.transaction() as db:
            db.execute("UPDATE debt SET error=? WHERE id=?", (error, debt.id))

    def tables(self, source: str | None = None) -> list[TableRecord]:
        """Return the tables of a source, or of all."""
        query = (
            "SELECT source, schema_name, table_name, local, state, error, hint FROM source_table"
            " WHERE ?1 IS NULL OR source = ?1 ORDER BY source, schema_name, table_name"
        )
        with self.connected() as db:
            rows = db.execute(query, (source,)).fetchall()
        return [TableRecord(r[0], TableName(r[1], r[2]), r[3], TableState(r[4]), r[5], r[6]) for r in rows]

    def set_table(
        self, source: str, upstream: TableName, state: TableState, *, error: str = "", hint: str = ""
    ) -> None:
        """Move a table to a state, unless somebody wishes something else of it.

        Who copies or applies a table may not know yet that it shall be dropped or captured anew. A wish gives way to
        another one here, and else to `grant` alone.
        """
        query = (
            "UPDATE source_table SET state=?1, error=?2, hint=?3 WHERE source=?4 AND schema_name=?5 AND table_name=?6"
            " AND (state NOT IN (?7, ?8, ?9) OR ?1 IN (?7, ?8, ?9))"
        )
        told = (state, error or None, hint or None, source, upstream.schema, upstream.name)
        with self.transaction() as db:
            db.execute(query, (*told, *WISHES))

    def note_trouble(self, source: str, upstream: TableName, error: str = "", hint: str = "") -> None:
        """Note what is wrong with a table that is pending or live, and stays so; without an error, that nothing is."""
        query = (
            "UPDATE source_table SET error=?, hint=? WHERE source=? AND schema_name=? AND table_name=?"
            " AND state IN (?, ?)"
        )
        told = (error or None, hint or None, source, upstream.schema, upstream.name)
        with self.transaction() as db:
            db.execute(query, (*told, TableState.PENDING, TableState.LIVE))

    def wish(self, wishes: Sequence[Wish]) -> None:
        """Note what shall become of tables, new or known, and what is asked of their sources then; all in one step."""
        with self.transaction() as db:
            for wish in wishes:
                _note(db, wish)

    def grant(self, table: TableRecord, state: TableState | None, *, error: str = "", hint: str = "") -> None:
        """Move a table on from a wish that was carried out, or could not be; None: forget the table.

        Nothing is done where another wish came meanwhile. What its base showed before holds no longer.
        """
        where = " WHERE source=? AND schema_name=? AND table_name=? AND state=?"
        which = (table.source, table.upstream.schema, table.upstream.name, table.state)
        with self.transaction() as db:
            if state is None:
                granted = db.execute(f"DELETE FROM source_table{where}", which).rowcount
            else:
                told = (state, error or None, hint or None)
                granted = db.execute(
                    f"UPDATE source_table SET state=?, error=?, hint=?{where}", (*told, *which)
                ).rowcount
            if granted and state in (None, TableState.PENDING):
                for about in ("base_version", "error_ahead"):
                    db.execute(f"DELETE FROM {about} WHERE source=? AND local=?", (table.source, table.local))

    def note_error_ahead(self, table: TableRecord, error: TableError | None) -> None:
        """Note the error at which a live view ended, where apply has not come to it yet; None: there is none."""
        with self.transaction() as db:
            db.execute("DELETE FROM error_ahead WHERE source=? AND local=?", (table.source, table.local))
            if error is not None and db.execute("SELECT 1 FROM source WHERE name=?", (table.source,)).fetchone():
                noted = (table.source, table.local, int(error.lsn), error.message, error.hint)
                db.execute("INSERT INTO error_ahead VALUES (?, ?, ?, ?, ?)", noted)

    def errors_ahead(self, source: str) -> dict[str, tuple[Lsn, str, str]]:
        """Return such errors by local name: position, message, hint. They hold for bases before that position."""
        query = "SELECT local, lsn, error, hint FROM error_ahead WHERE source=?"
        with self.connected() as db:
            return {row[0]: (Lsn(row[1]), row[2], row[3]) for row in db.execute(query, (source,))}

    def note_progress(self, source: str, local: str, progress: CopyProgress) -> None:
        """Note how far the copy of a table is; what was noted before is never taken back."""
        query = (
            "INSERT INTO copy_progress VALUES (?1, ?2, ?3, ?4, max(?3, ?5), max(?4, ?6), ?7)"
            " ON CONFLICT DO UPDATE SET rows=max(rows, ?3), bytes=max(bytes, ?4),"
            " total_rows=max(rows, ?3, ?5), total_bytes=max(bytes, ?4, ?6), waiting=?7"
        )
        found = (progress.rows, progress.bytes, progress.total_rows, progress.total_bytes, progress.waiting)
        with self.transaction() as db:
            if db.execute("SELECT 1 FROM source WHERE name=?", (source,)).fetchone():
                db.execute(query, (source, local, *found))

    def progress(self, source: str) -> dict[str, CopyProgress]:
        """Return how far the copies of a source are, by local name."""
        query = "SELECT local, rows, bytes, total_rows, total_bytes, waiting FROM copy_progress WHERE source=?"
        with self.connected() as db:
            return {row[0]: CopyProgress(*row[1:]) for row in db.execute(query, (source,))}

    def forget_progress(self, source: str, local: str | None = None) -> None:
        """Forget a copy: it is whole, or begins anew; without a table, those of all tables."""
        with self.transaction() as db:
            db.execute("DELETE FROM copy_progress WHERE source=?1 AND local=coalesce(?2, local)", (source, local))

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Open the catalog's file for reading."""
        try:
            db = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        except sqlite3.OperationalError as error:
            message = f"the catalog {self._path} cannot be opened: {error}"
            raise DefiniteError(message, "Check the home.") from error
        try:
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA synchronous = FULL")
            yield db
        except sqlite3.DatabaseError as error:
            raise _translated(error, self._path) from error
        finally:
            db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open it for one change: all of it or nothing."""
        with self.connected() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise


def _reads_elsewhere(kind_name: str) -> bool:
    """Whether changes of a kind of source lie elsewhere than in its log; where not, its instance need not be read.

    A kind of others may not be installed where only the log is read; such a kind has all of its changes there.
    """
    found = kinds().get(kind_name)
    return found is not None and found.config.reading is not InstanceConfig.reading


@lru_cache(maxsize=64)
def read_instance(kind_name: str, text: str) -> InstanceConfig:
    """Read an instance config, once: it may name thousands of tables, and every live view asks for it."""
    return kind(kind_name).config.model_validate_json(text)


def _source_record(row: Sequence[Any]) -> SourceRecord:
    name, kind, spec, instance, state, error, hint, log, part_of, shard, keep_tables, durable = row
    told = (SourceState(state), error, hint, log, part_of, shard)
    return SourceRecord(name, kind, spec, instance, *told, bool(keep_tables), Lsn(durable))


def _place(table: TableRecord) -> tuple[str, str, str]:
    return table.source, table.upstream.schema, table.upstream.name


def _note(db: sqlite3.Connection, wish: Wish) -> None:
    table = wish.table
    db.execute(
        "INSERT INTO source_table VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (source, schema_name, table_name)"
        " DO UPDATE SET state=excluded.state, error=excluded.error, hint=excluded.hint",
        (*_place(table), table.local, table.state, table.error, table.hint),
    )
    if wish.spec is not None:
        _change_spec(db, table.source, wish.spec)


def _change_spec(db: sqlite3.Connection, source: str, spec: tuple[str, str]) -> None:
    """Replace what is asked of a source, unless that is not what it was before."""
    query = "UPDATE source SET spec=?2 WHERE spec=?1 AND name=?3 AND state NOT IN (?4, ?5)"
    if not db.execute(query, (*spec, source, SourceState.CREATING, SourceState.DROPPING)).rowcount:
        message = f"source {source} was changed by somebody else at this moment"
        raise TransientError(message, "Nothing was done: try again.")


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch the file to WAL mode; SQLite does not wait for others who do the same at this moment."""
    deadline = time.monotonic() + _WAL_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _translated(error: sqlite3.DatabaseError, path: Path) -> Exception:
    if "full" in str(error) or "I/O" in str(error):
        return DefiniteError(
            f"the disk under {path.parent} is full or failing: {error}", "Free some space; start again."
        )
    if "not a database" in str(error) or "malformed" in str(error):
        return DefiniteError(f"{path} is not a catalog of Penstock: {error}", "Use another home (--home).")
    if isinstance(error, sqlite3.OperationalError):
        return DefiniteError(
            f"the catalog {path} cannot be used: {error}", "Check that the home is whole and writable."
        )
    return error
