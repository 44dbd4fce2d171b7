"""Verify: live tables against Postgres, row by row, at one named position.

::

    exported snapshot at S ─▶ the log holds S ─┬▶ rows of Postgres at S ┐
                                               └▶ live table at S ──────┴▶ compared (`tables.compare`) ─▶ Verdict

All tables are compared at the same S, so a transaction over several of them is in both sides of each, or in none. A
table that has no rows to compare (it failed, or waits for its copy) has a verdict that says so, and keeps no other from
being compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.records import database_instance_of, database_spec_of
from penstock.engine.snapshot import Shown
from penstock.engine.table import FollowedTable
from penstock.engine.table_names import named_source, named_tables
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.fields import with_fields
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect, connection_error
from penstock.sources.postgres.copy import copy_ranges
from penstock.sources.postgres.slot import export_snapshot
from penstock.spark.boundary import brief, delivering
from penstock.tables.compare import Differences
from penstock.tables.interface import Rows, TableStore, UpstreamTable

__all__ = ["LiveTables", "Verdict", "verify_source", "wait_for"]

_PATIENCE_SECONDS = 120.0
_ATTEMPTS = 5
"""How often a table is compared again that was truncated or rewritten meanwhile."""
_WAITING = {
    TableState.ADDING: "it is being added",
    TableState.DROPPING: "it is being dropped",
    TableState.PENDING: "it is still being copied",
    TableState.RETRYING: "it is to be captured anew",
}


@dataclass(frozen=True)
class Verdict:
    """The comparison of one table with Postgres at a position, or why there is none."""

    table: str
    """Its name upstream."""
    local: str
    """Its name here."""
    position: Lsn | None
    """None where a shard could not be asked for one."""
    key: tuple[str, ...] = ()
    """The columns that its keys have; none for a table without a key, of which whole rows are told."""
    differences: Differences | None = None
    error: str | None = None
    hint: str | None = None
    source: str = ""
    """The source that it is of; of shards, each has its own."""
    shard: str | None = None

    @property
    def equal(self) -> bool:
        """Whether it was compared and not one row differs."""
        return self.differences is not None and self.differences.count == 0


class LiveTables(Protocol):
    """Live tables at one position."""

    def table(self, name: str) -> Rows:
        """Return the rows of a table."""


@dataclass(frozen=True)
class _Sides:
    """Both sides of the comparison, at one position."""

    store: TableStore
    instance: PostgresInstanceConfig
    shown: Shown
    live: LiveTables


@dataclass(frozen=True)
class _How:
    """How to compare."""

    home: Path
    catalog: Catalog
    store: TableStore
    record: SourceRecord
    live_at: Callable[[Lsn], LiveTables]
    limit: int
    exact: bool
    progress: Callable[[str], None]


def verify_source(
    home: Path,
    catalog: Catalog,
    store: TableStore,
    source: SourceRecord,
    live_at: Callable[[Lsn], LiveTables],
    tables: Sequence[str] = (),
    *,
    limit: int = 20,
    exact: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Verdict]:
    """Compare tables, all unless some are named, at one exported snapshot; `progress` gets each name.

    A shard that cannot be reached keeps the others from nothing: it has verdicts that say so.
    """
    chosen = named_tables(catalog, source.name, tables)
    how = _How(home, catalog, store, source, live_at, limit, exact, progress)
    try:
        verdicts = _compare_until_shown(how, chosen)
    except TransientError as error:
        if source.shard is None:
            raise
        told = (error.message, error.hint)
        verdicts = [Verdict(str(t.upstream), t.local, None, error=told[0], hint=told[1]) for t in chosen]
    return [replace(verdict, source=source.name, shard=source.shard) for verdict in verdicts]


def _compare_until_shown(how: _How, chosen: Sequence[TableRecord]) -> list[Verdict]:
    verdicts: dict[str, Verdict] = {}
    asked = chosen
    for _ in range(_ATTEMPTS):
        found, asked = _compare(how, asked)
        verdicts |= {verdict.table: verdict for verdict in found}
        if not asked:
            break
    return [verdicts[str(table.upstream)] for table in chosen]


def _compare(how: _How, chosen: Sequence[TableRecord]) -> tuple[list[Verdict], list[TableRecord]]:
    """Compare tables once, at one snapshot; return the verdicts, and the tables whose difference may be none.

    Those looked empty to the snapshot, because they were truncated or rewritten since.
    """
    catalog, store, source = how.catalog, how.store, how.record.name
    record = named_source(catalog, source)
    spec, instance = database_spec_of(record), database_instance_of(record)
    try:
        _note_newest(how.home, catalog, store, instance, chosen)
        with export_snapshot(instance.connection) as snapshot, delivering():
            wait_for(catalog.log(source), source, snapshot.lsn)
            sides = _Sides(store, instance, Shown.by(snapshot, spec), how.live_at(snapshot.lsn))
            verdicts, again = [], []
            for table in chosen:
                how.progress(f"{source}.{table.local}")
                verdict = _verdict(sides, table, how.limit, how.exact)
                verdicts.append(verdict)
                if verdict.differences and not verdict.equal and not sides.shown.still_shows(table.upstream):
                    again.append(table)
    except psycopg.Error as error:
        raise connection_error(error, instance.connection) from error
    except (PySparkException, Py4JError) as error:
        message = f"the comparison broke off: {brief(error)}"
        raise TransientError(message, "Try again.") from error
    return verdicts, again


def _note_newest(
    home: Path, catalog: Catalog, store: TableStore, instance: PostgresInstanceConfig, tables: Sequence[TableRecord]
) -> None:
    """Compare the lake as it is now, also where somebody else changed it: live views know what we wrote ourselves."""
    captured = {table.name: table for table in instance.tables}
    for record in tables:
        if record.state is TableState.LIVE and record.upstream in captured:
            FollowedTable(home, catalog, record, captured[record.upstream], store).look_up()


def _verdict(sides: _Sides, table: TableRecord, limit: int, exact: bool) -> Verdict:
    name, position = str(table.upstream), sides.shown.snapshot.lsn
    try:
        captured = _captured(sides, table)
        live = sides.live.table(f"{table.source}.{table.local}")
    except PenstockError as error:
        return Verdict(name, table.local, position, error=error.message, hint=error.hint)
    captured = with_fields(captured, columns=captured.columns[: len(live.columns)])
    with connect(sides.shown.conninfo) as connection:
        ranges = copy_ranges(connection, captured.name, sides.store.parallelism)
    rows = sides.store.upstream(UpstreamTable(sides.shown.conninfo, sides.shown.snapshot, captured, ranges))
    found = sides.store.differences(rows, live, captured.key, limit, exact=exact)
    return Verdict(name, table.local, position, captured.key, found)


def _captured(sides: _Sides, table: TableRecord) -> CapturedTable:
    """Return the table as it is upstream; a column that is new there comes here with the first change after it."""
    if table.state is TableState.FAILED:
        raise DefiniteError(table.error or f"{table.upstream} has failed", table.hint or "")
    known = next((t for t in sides.instance.tables if t.name == table.upstream), None)
    if table.state in _WAITING or known is None:
        message = f"{table.upstream} cannot be compared: {_WAITING.get(table.state, 'it is not captured')}"
        raise TransientError(message, "Try again when `penstock status` shows it as live.")
    now = known.as_found(sides.shown.tables.get(table.upstream))
    if isinstance(now, str):
        message = f"{table.upstream} cannot be compared: {now}"
        raise DefiniteError(message, f"Capture it anew: ALTER SOURCES {table.source} RETRY TABLE {table.upstream};")
    return now


def wait_for(log: ChangeLog, source: str, position: Lsn, seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait until the log holds everything up to a position."""
    with closing(log.reader()) as reader:
        if reader.wait(Lsn(position - 1), seconds).durable < position:
            message = f"the log of {source} did not reach {position} in {seconds:.0f} s"
            raise TransientError(message, "Is its capture running? See `penstock status`.")
