"""The catalog: the durable record of a home's sources and tables, in SQLite. It never contains secrets.

A source is recorded before any object is created upstream, and deleted only after all of them are removed; so the next
start always detects a crash in between. Several processes may use the catalog concurrently.

A *debt* is the record of upstream objects that a source dropped by force left in place. Each later start tries to
remove these objects; then the debt is settled and its record deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.catalog.bases import Bases, KeptBase
from penstock.catalog.file import CatalogFile
from penstock.catalog.progress import CopyProgress
from penstock.catalog.sinks import Sinks
from penstock.catalog.states import REQUESTS, SourceState, TableState
from penstock.changelog.interface import ChangeLog
from penstock.changelog.log_url import log_at
from penstock.errors import SchemaChangeError, TableError, TransientError
from penstock.layout import state_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.interface import InstanceConfig
from penstock.sources.kinds import installed_kind, kind

__all__ = ["Catalog", "Debt", "SourceRecord", "TableRecord", "TableRequest", "read_instance"]


@dataclass(frozen=True)
class SourceRecord:
    """A source in the catalog; `spec` and `instance` are JSON of the types of its kind."""

    name: str
    kind: str
    spec: str
    instance: str
    state: SourceState
    error: str | None = None
    hint: str | None = None
    log: str | None = None
    """The URL of its change log; None for the embedded log in the home."""
    part_of: str | None = None
    """For a shard, the user-given name of the sharded source."""
    shard: str | None = None
    """For a shard, the value of the column `penstock.model.SHARD` in its rows."""
    keep_tables: bool = False
    """For a source that is being dropped, whether its base tables are kept."""
    durable: Lsn = Lsn.ZERO
    """For a source that is being dropped by force, the position at which its log ended."""

    @property
    def known_as(self) -> str:
        """The user-given name: for a shard, that of the sharded source."""
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
    code: str = ""
    """The code of its error's class; see `penstock.errors.TableError`."""
    reason: str | None = None
    """Why the table is captured again, if there was no request."""

    @property
    def schema_changed(self) -> bool:
        """Whether it failed because its definition changed upstream."""
        return self.state is TableState.FAILED and self.code == SchemaChangeError.code


@dataclass(frozen=True)
class TableRequest:
    """A request to change a table: its record in the requested state, and its source's spec before and after."""

    table: TableRecord
    spec: tuple[str, str] | None = None


@dataclass(frozen=True)
class Debt:
    """Upstream objects that a source dropped by force left in place, to be removed when the upstream is reachable.

    `instance` is JSON of the type of its kind. This source never confirmed the slot beyond `durable`, so a slot that is
    further ahead belongs to another home.
    """

    id: int
    source: str
    kind: str
    instance: str
    durable: Lsn
    error: str | None
    since: str


class Catalog(CatalogFile):
    """The catalog of a home."""

    @property
    def bases(self) -> Bases:
        """The position of each version of each base table."""
        return Bases(self)

    @property
    def sinks(self) -> Sinks:
        """The sinks of the home."""
        return Sinks(self)

    def sources(self) -> list[SourceRecord]:
        """Return all sources, by name."""
        with self.connected() as db:
            columns = "name, kind, spec, instance, state, error, hint, log, part_of, shard, keep_tables, durable"
            rows = db.execute(f"SELECT {columns} FROM source ORDER BY name")
            return [_source_record(row) for row in rows]

    def source(self, name: str) -> SourceRecord | None:
        """Return the source of this name, or None."""
        return next((record for record in self.sources() if record.name == name), None)

    def parts(self, name: str) -> list[SourceRecord]:
        """Return the source of this name, or the shards of a sharded source; an empty list if there is none."""
        with self.connected() as db:
            given = [found for (found,) in db.execute("SELECT name FROM source ORDER BY rowid")]
        records = sorted(self.sources(), key=lambda record: given.index(record.name))
        return [record for record in records if record.name == name] or [r for r in records if r.part_of == name]

    def log(self, name: str) -> ChangeLog:
        """Return the change log of a source."""
        record, home = self.source(name), self._path.parent
        log = log_at(home, name, record.log if record else None)
        if record is None or not _reads_elsewhere(record.kind):
            return log
        return read_instance(record.kind, record.instance).reading(log, state_path(home, name))

    def add_sources(self, sources: Sequence[tuple[SourceRecord, Sequence[TableRecord]]]) -> None:
        """Insert sources and their tables, atomically."""
        with self.transaction() as db:
            for r, tables in sources:
                db.execute(
                    "INSERT INTO source (name, kind, spec, instance, state, log, part_of, shard)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (r.name, r.kind, r.spec, r.instance, r.state, r.log, r.part_of, r.shard),
                )
                db.executemany(_INSERT_TABLE, [_table_row(table) for table in tables])

    def mark_created(self, instances: Mapping[str, str]) -> None:
        """Set sources to `ready` with their instances, atomically: all objects that they need exist."""
        query = "UPDATE source SET state=?, instance=? WHERE name=? AND state=?"
        ready, creating = SourceState.READY, SourceState.CREATING
        with self.transaction() as db:
            db.executemany(query, [(ready, instance, name, creating) for name, instance in instances.items()])

    def set_source(
        self, name: str, state: SourceState, *, instance: str | None = None, error: str = "", hint: str = ""
    ) -> None:
        """Set the state of a source, unless another process is creating or dropping it.

        A capture process that outlives its parent may still report its state. It must not bring back a source that is
        being dropped, nor complete one that is being created: only `create` does that, and passes the instance.
        """
        query = (
            "UPDATE source SET state=?1, error=?2, hint=?3, instance=coalesce(?4, instance) WHERE name=?5 AND"
            " (state NOT IN (?6, ?7) OR ?1 = ?7 OR (state = ?6 AND (?4 IS NOT NULL OR ?1 = ?6)))"
        )
        guarded = (SourceState.CREATING, SourceState.DROPPING)
        with self.transaction() as db:
            db.execute(query, (state, error or None, hint or None, instance, name, *guarded))

    def begin_drop(self, names: Sequence[str], *, keep_tables: bool = False) -> None:
        """Set sources to `dropping`, atomically; their base tables are kept if this or an earlier call requests it."""
        query = "UPDATE source SET state=?, error=NULL, hint=NULL, keep_tables=max(keep_tables, ?) WHERE name=?"
        with self.transaction() as db:
            db.executemany(query, [(SourceState.DROPPING, keep_tables, name) for name in names])

    def cancel_drop(self, before: SourceRecord) -> None:
        """Restore the state that a source had `before` it was to be dropped: nothing of it has been removed."""
        query = "UPDATE source SET state=?, error=?, hint=?, keep_tables=? WHERE name=? AND state=?"
        was = (before.state, before.error, before.hint, before.keep_tables, before.name, SourceState.DROPPING)
        with self.transaction() as db:
            db.execute(query, was)

    def note_source_error(self, name: str, error: str, hint: str, state: SourceState | None = None) -> None:
        """Record the error of a running source, and its new state; without `state`, the state is unchanged."""
        query = "UPDATE source SET state=coalesce(?1, state), error=?2, hint=?3 WHERE name=?4 AND state IN (?5, ?6)"
        with self.transaction() as db:
            db.execute(query, (state, error, hint or None, name, SourceState.READY, SourceState.FAILED))

    def forget_source_error(self, name: str, error: str | None = None) -> None:
        """Clear the error of a running source and set it to `ready`; with `error`, only if that is the recorded one."""
        query = (
            "UPDATE source SET state=?1, error=NULL, hint=NULL WHERE name=?2 AND state IN (?1, ?3)"
            " AND (?4 IS NULL OR error = ?4)"
        )
        with self.transaction() as db:
            db.execute(query, (SourceState.READY, name, SourceState.FAILED, error))

    def note_durable(self, name: str, durable: Lsn) -> None:
        """Record the end of a source's log, before the log is removed while upstream objects stay in place."""
        with self.transaction() as db:
            db.execute("UPDATE source SET durable=? WHERE name=?", (durable, name))

    def alter(self, specs: Mapping[str, tuple[str, str]], requests: Sequence[TableRequest] = ()) -> None:
        """Replace the specs of sources, given before and after, and record requests for their tables, atomically."""
        with self.transaction() as db:
            for name, spec in specs.items():
                _change_spec(db, name, spec)
            for request in requests:
                _insert_request(db, request)

    def remove_source(self, name: str, debt: tuple[str, str, Lsn] | None = None) -> None:
        """Delete a source and all its records; record the debt that it leaves upstream in the same transaction."""
        with self.transaction() as db:
            db.execute("DELETE FROM source WHERE name=?", (name,))
            db.execute("DELETE FROM repair WHERE source=? AND state='asked'", (name,))
            if debt is not None:
                db.execute("INSERT INTO debt (source, kind, instance, durable) VALUES (?, ?, ?, ?)", (name, *debt))

    def debts(self) -> list[Debt]:
        """Return the unsettled debts, oldest first."""
        with self.connected() as db:
            rows = db.execute(
                "SELECT id, source, kind, instance, durable, error, since FROM debt ORDER BY id"
            ).fetchall()
        return [Debt(r[0], r[1], r[2], r[3], Lsn(r[4]), r[5], r[6]) for r in rows]

    def settle(self, debt: Debt) -> None:
        """Delete a debt: its upstream objects are removed."""
        with self.transaction() as db:
            db.execute("DELETE FROM debt WHERE id=?", (debt.id,))

    def defer(self, debt: Debt, error: str) -> None:
        """Record why a debt could not be settled."""
        with self.transaction() as db:
            db.execute("UPDATE debt SET error=? WHERE id=?", (error, debt.id))

    def tables(self, source: str | None = None) -> list[TableRecord]:
        """Return the tables of a source, or of all sources."""
        query = (
            "SELECT source, schema_name, table_name, local, state, error, hint, code, reason FROM source_table"
            " WHERE ?1 IS NULL OR source = ?1 ORDER BY source, schema_name, table_name"
        )
        with self.connected() as db:
            rows = db.execute(query, (source,)).fetchall()
        return [TableRecord(r[0], TableName(r[1], r[2]), r[3], TableState(r[4]), *r[5:]) for r in rows]

    def set_table(
        self, source: str, upstream: TableName, state: TableState, *, error: str = "", hint: str = "", code: str = ""
    ) -> None:
        """Set the state of a table, unless a request for it is pending.

        The snapshot or apply of a table may not know yet that the table is to be dropped or captured again. Here, only
        another request replaces a request; otherwise `complete_request` ends it.
        """
        query = (
            "UPDATE source_table SET state=?1, error=?2, hint=?3, code=?7, reason=NULL"
            " WHERE source=?4 AND schema_name=?5 AND table_name=?6"
            " AND (state NOT IN (?8, ?9, ?10) OR ?1 IN (?8, ?9, ?10))"
        )
        values = (state, error or None, hint or None, source, upstream.schema, upstream.name, code)
        with self.transaction() as db:
            db.execute(query, (*values, *REQUESTS))
            if state is TableState.LIVE:
                db.execute(_FORGET_KEPT, (source, upstream.schema, upstream.name))

    def note_table_error(self, source: str, upstream: TableName, error: str = "", hint: str = "") -> None:
        """Record the error of a table that stays pending or live; without an error, clear it."""
        query = (
            "UPDATE source_table SET error=?, hint=? WHERE source=? AND schema_name=? AND table_name=?"
            " AND state IN (?, ?)"
        )
        values = (error or None, hint or None, source, upstream.schema, upstream.name)
        with self.transaction() as db:
            db.execute(query, (*values, TableState.PENDING, TableState.LIVE))

    def add_requests(self, requests: Sequence[TableRequest]) -> None:
        """Record requests for tables, new or known, and the changed specs of their sources, atomically."""
        with self.transaction() as db:
            for request in requests:
                _insert_request(db, request)

    def complete_request(
        self,
        table: TableRecord,
        state: TableState | None,
        *,
        error: str = "",
        hint: str = "",
        code: str = "",
        kept: KeptBase | None = None,
    ) -> None:
        """End a request that was executed or has failed: set the table's new state, or delete the table (None).

        If another request replaced this one meanwhile, change nothing. When the table begins again or is deleted, its
        base versions are deleted, too: they are no longer valid. `kept` is the last state of a table that begins again;
        it stays readable until the table is live.
        """
        where = " WHERE source=? AND schema_name=? AND table_name=? AND state=?"
        which = (table.source, table.upstream.schema, table.upstream.name, table.state)
        with self.transaction() as db:
            if state is None:
                changed = db.execute(f"DELETE FROM source_table{where}", which).rowcount
            else:
                reason = table.reason if state is TableState.PENDING else None
                values = (state, error or None, hint or None, code, reason)
                changed = db.execute(
                    f"UPDATE source_table SET state=?, error=?, hint=?, code=?, reason=?{where}", (*values, *which)
                ).rowcount
            if changed and kept is not None:
                row = (table.source, table.local, kept.version, kept.position, kept.until, kept.schema.to_bytes())
                db.execute("INSERT OR REPLACE INTO kept_base VALUES (?, ?, ?, ?, ?, ?)", row)
            if changed and state in (None, TableState.PENDING):
                for about in ("base_version", "error_ahead", "row_count", *(() if state else ("kept_base",))):
                    db.execute(f"DELETE FROM {about} WHERE source=? AND local=?", (table.source, table.local))

    def note_error_ahead(self, table: TableRecord, error: TableError | None) -> None:
        """Record the error that a live view hit at a position that apply has not reached yet; None clears it."""
        with self.transaction() as db:
            db.execute("DELETE FROM error_ahead WHERE source=? AND local=?", (table.source, table.local))
            if error is not None and db.execute("SELECT 1 FROM source WHERE name=?", (table.source,)).fetchone():
                noted = (table.source, table.local, int(error.lsn), error.message, error.hint)
                db.execute("INSERT INTO error_ahead VALUES (?, ?, ?, ?, ?)", noted)

    def errors_ahead(self, source: str) -> dict[str, tuple[Lsn, str, str]]:
        """Return these errors by local name: position, message, hint. They apply to bases before that position."""
        query = "SELECT local, lsn, error, hint FROM error_ahead WHERE source=?"
        with self.connected() as db:
            return {row[0]: (Lsn(row[1]), row[2], row[3]) for row in db.execute(query, (source,))}

    def note_progress(self, source: str, local: str, progress: CopyProgress) -> None:
        """Record the progress of a table's snapshot; the recorded counts never decrease."""
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
        """Return the progress of a source's snapshots, by local name."""
        query = "SELECT local, rows, bytes, total_rows, total_bytes, waiting FROM copy_progress WHERE source=?"
        with self.connected() as db:
            return {row[0]: CopyProgress(*row[1:]) for row in db.execute(query, (source,))}

    def forget_progress(self, source: str, local: str | None = None) -> None:
        """Delete the progress of a table's snapshot, or of all tables: it is complete, or starts again."""
        with self.transaction() as db:
            db.execute("DELETE FROM copy_progress WHERE source=?1 AND local=coalesce(?2, local)", (source, local))


def _reads_elsewhere(kind_name: str) -> bool:
    """Whether a kind of source stores changes elsewhere than in its log; otherwise its instance need not be parsed.

    A third-party kind may not be installed where only the log is read; such a kind stores all its changes in the log.
    """
    found = installed_kind(kind_name)
    return found is not None and found.config.reading is not InstanceConfig.reading


@lru_cache(maxsize=64)
def read_instance(kind_name: str, text: str) -> InstanceConfig:
    """Parse an instance config, cached: it may contain thousands of tables, and every live view needs it."""
    return kind(kind_name).config.model_validate_json(text)


def _source_record(row: Sequence[Any]) -> SourceRecord:
    name, kind, spec, instance, state, error, hint, log, part_of, shard, keep_tables, durable = row
    values = (SourceState(state), error, hint, log, part_of, shard)
    return SourceRecord(name, kind, spec, instance, *values, bool(keep_tables), Lsn(durable))


def _place(table: TableRecord) -> tuple[str, str, str]:
    return table.source, table.upstream.schema, table.upstream.name


_FORGET_KEPT = (
    "DELETE FROM kept_base WHERE source=?1 AND local IN (SELECT local FROM source_table WHERE source=?1"
    " AND schema_name=?2 AND table_name=?3 AND state='live')"
)
_INSERT_TABLE = (
    "INSERT INTO source_table (source, schema_name, table_name, local, state, error, hint, code, reason)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _table_row(table: TableRecord) -> tuple[str | None, ...]:
    return (*_place(table), table.local, table.state, table.error, table.hint, table.code, table.reason)


def _insert_request(db: sqlite3.Connection, request: TableRequest) -> None:
    table = request.table
    db.execute(
        f"{_INSERT_TABLE} ON CONFLICT (source, schema_name, table_name) DO UPDATE SET state=excluded.state,"
        " error=excluded.error, hint=excluded.hint, code=excluded.code, reason=excluded.reason",
        _table_row(table),
    )
    if request.spec is not None:
        _change_spec(db, table.source, request.spec)


def _change_spec(db: sqlite3.Connection, source: str, spec: tuple[str, str]) -> None:
    """Replace the spec of a source, unless it changed meanwhile."""
    query = "UPDATE source SET spec=?2 WHERE spec=?1 AND name=?3 AND state NOT IN (?4, ?5)"
    if not db.execute(query, (*spec, source, SourceState.CREATING, SourceState.DROPPING)).rowcount:
        message = f"source {source} was changed concurrently by another process"
        raise TransientError(message, "Nothing was changed. Try again.")
