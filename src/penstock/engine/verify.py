"""Verify: compare live tables with the upstream database, row by row, at one named position, and report the result.

::

    snapshot at S ─▶ the log holds S ─┬▶ rows upstream at S ┐
                                      └▶ live table at S ───┴▶ compared (`tables.compare`) ─▶ Verdict ─▶ VerifyReport

All tables are compared at the same S, so a transaction over several tables is on both sides of each, or on none. A
table that cannot be compared (it failed, or its snapshot is not complete) gets a verdict with the reason; the other
tables are still compared.

The JSON format of the report is documented and versioned. The report contains the keys of differing rows, which the
user requested, but no other row values. For a keyless table it contains only the number of differing rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.catalog_records import instance_of, require_database
from penstock.engine.table import RunningTable
from penstock.engine.table_names import named_source, named_tables
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.positions import Lsn
from penstock.sources.database import Snapshot
from penstock.sources.interface import InstanceConfig
from penstock.sources.produced_table import ProducedTable
from penstock.spark.worker_errors import brief, unpack_errors
from penstock.tables.compare import Differences
from penstock.tables.interface import Rows, TableStore

__all__ = [
    "LiveTables",
    "Verdict",
    "VerifyKey",
    "VerifyRepair",
    "VerifyReport",
    "VerifyTable",
    "verify_report",
    "verify_source",
]

_TIMEOUT_SECONDS = 120.0
_ATTEMPTS = 5
"""The maximum number of comparisons of a table that is truncated or rewritten meanwhile."""
_WAITING = {
    TableState.ADDING: "it is being added",
    TableState.DROPPING: "it is being dropped",
    TableState.PENDING: "its snapshot is not complete",
    TableState.RETRYING: "it is about to be captured again",
}


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one table with the upstream at a position, or the reason why it was not compared."""

    table: str
    """Its upstream name."""
    local: str
    """Its local name."""
    position: Lsn | None
    """None if the shard is unreachable."""
    key: tuple[str, ...] = ()
    """The key columns; empty for a keyless table, of which whole rows are compared."""
    differences: Differences | None = None
    error: str | None = None
    hint: str | None = None
    source: str = ""
    """Its source; each shard is a source of its own."""
    shard: str | None = None

    @property
    def equal(self) -> bool:
        """Whether the table was compared and no row differs."""
        return self.differences is not None and self.differences.count == 0


class LiveTables(Protocol):
    """Live tables at one position."""

    def table(self, name: str) -> Rows:
        """Return the rows of a table."""


@dataclass(frozen=True)
class _Sides:
    """Both sides of a comparison, at one position."""

    store: TableStore
    instance: InstanceConfig
    snapshot: Snapshot
    live: LiveTables


@dataclass(frozen=True)
class _Comparison:
    """The arguments of a comparison."""

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
    """Compare tables, all unless some are named, at one snapshot; `progress` is called with each name.

    The tables of an unreachable shard get verdicts with the error, so that the other shards are still compared.
    """
    chosen = named_tables(catalog, source.name, tables)
    comparison = _Comparison(home, catalog, store, source, live_at, limit, exact, progress)
    try:
        verdicts = _compare_until_shown(comparison, chosen)
    except TransientError as error:
        if source.shard is None:
            raise
        reported = (error.message, error.hint)
        verdicts = [Verdict(str(t.upstream), t.local, None, error=reported[0], hint=reported[1]) for t in chosen]
    return [replace(verdict, source=source.name, shard=source.shard) for verdict in verdicts]


def _compare_until_shown(comparison: _Comparison, chosen: Sequence[TableRecord]) -> list[Verdict]:
    verdicts: dict[str, Verdict] = {}
    remaining = chosen
    for _ in range(_ATTEMPTS):
        found, remaining = _compare(comparison, remaining)
        verdicts |= {verdict.table: verdict for verdict in found}
        if not remaining:
            break
    return [verdicts[str(table.upstream)] for table in chosen]


def _compare(comparison: _Comparison, chosen: Sequence[TableRecord]) -> tuple[list[Verdict], list[TableRecord]]:
    """Compare tables once, at one snapshot; return the verdicts, and the tables to compare again.

    These were truncated or rewritten since, and look empty in the snapshot: their differences may be false.
    """
    catalog, store, source = comparison.catalog, comparison.store, comparison.record.name
    record = named_source(catalog, source)
    database, instance = require_database(record), instance_of(record)
    try:
        _note_newest(comparison.home, catalog, store, instance, chosen)
        with (
            database.translated_errors(),
            database.snapshot(lambda _: None, threading.Event()) as snapshot,
            unpack_errors(),
        ):
            _wait_for(catalog.log(source), source, snapshot.position)
            sides = _Sides(store, instance, snapshot, comparison.live_at(snapshot.position))
            verdicts, again = [], []
            for table in chosen:
                comparison.progress(f"{source}.{table.local}")
                verdict = _verdict(sides, table, comparison.limit, comparison.exact)
                verdicts.append(verdict)
                if verdict.differences and not verdict.equal and not snapshot.has_all_rows(table.upstream):
                    again.append(table)
    except (PySparkException, Py4JError) as error:
        message = f"the comparison was interrupted: {brief(error)}"
        raise TransientError(message, "Try again.") from error
    return verdicts, again


def _note_newest(
    home: Path, catalog: Catalog, store: TableStore, instance: InstanceConfig, tables: Sequence[TableRecord]
) -> None:
    """Record the newest Delta versions, so that changes by other writers are compared, too."""
    captured = {table.name: table for table in instance.produced()}
    for record in tables:
        if record.state is TableState.LIVE and record.upstream in captured:
            RunningTable(home, catalog, record, captured[record.upstream], store).load_state()


def _verdict(sides: _Sides, table: TableRecord, limit: int, exact: bool) -> Verdict:
    name, position = str(table.upstream), sides.snapshot.position
    try:
        captured = _captured(sides, table)
        live = sides.live.table(f"{table.source}.{table.local}")
    except PenstockError as error:
        return Verdict(name, table.local, position, error=error.message, hint=error.hint)
    rows = sides.store.copied_rows(sides.snapshot.copy(captured, sides.store.parallelism, len(live.columns)))
    key = captured.table_schema().key
    rows, live = (sides.store.without_columns(side, captured.absent_columns()) for side in (rows, live))
    found = sides.store.differences(rows, live, key, limit, exact=exact)
    return Verdict(name, table.local, position, key, found)


def _captured(sides: _Sides, table: TableRecord) -> ProducedTable:
    """Return the upstream definition of a table; a new column arrives here only with the first change after it."""
    if table.state is TableState.FAILED:
        raise DefiniteError(table.error or f"{table.upstream} has failed", table.hint or "")
    known = next((t for t in sides.instance.produced() if t.name == table.upstream), None)
    if table.state in _WAITING or known is None:
        message = f"{table.upstream} cannot be compared: {_WAITING.get(table.state, 'it is not captured')}"
        raise TransientError(message, "Try again when `penstock status` shows it as live.")
    now = sides.snapshot.find(known)
    if isinstance(now, str):
        message = f"{table.upstream} cannot be compared: {now}"
        raise DefiniteError(message, f"Resnapshot it: ALTER SOURCES {table.source} RETRY TABLE {table.upstream};")
    return now


def _wait_for(log: ChangeLog, source: str, position: Lsn, seconds: float = _TIMEOUT_SECONDS) -> None:
    """Wait until the log has reached a position."""
    with closing(log.reader()) as reader:
        if reader.wait(Lsn(position - 1), seconds).durable < position:
            message = f"the log of {source} did not reach {position} in {seconds:.0f} s"
            raise TransientError(message, "Check with `penstock status` that capture is running.")


# -- report ------------------------------------------------------------------------------------------------------------

_VERSION = 1


@dataclass(frozen=True)
class VerifyKey:
    """The key of a differing row, and how the row differs."""

    key: dict[str, Any]
    how: str


@dataclass(frozen=True)
class VerifyTable:
    """The result for one table."""

    name: str
    upstream: str
    result: str
    rows: int | None
    differing: int | None
    missing: int | None
    unexpected: int | None
    changed: int | None
    keys: list[VerifyKey]
    error: str | None
    hint: str | None
    shard: str | None = None
    position: str | None = None


@dataclass(frozen=True)
class VerifyRepair:
    """The repair of one table."""

    name: str
    rows_changed: int
    low: str
    high: str


@dataclass(frozen=True)
class VerifyReport:
    """The comparison of tables at one position; after a repair, `before` is the report of the first comparison."""

    version: int
    source: str
    position: str | None
    equal: bool
    tables: list[VerifyTable]
    repairs: list[VerifyRepair] = field(default_factory=list)
    before: VerifyReport | None = None

    @property
    def differs(self) -> bool:
        """Whether a table was compared and differs."""
        return any(table.result == "different" for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document of ``penstock verify --json``."""
        return asdict(self)


def verify_report(source: str, verdicts: Sequence[Verdict], limit: int = 20) -> VerifyReport:
    """Return the report of verdicts, with up to `limit` keys per table; shards have no common position."""
    tables = [_table(verdict, limit) for verdict in verdicts]
    sharded = any(verdict.shard is not None for verdict in verdicts)
    position = None if sharded or not verdicts else tables[0].position
    return VerifyReport(_VERSION, source, position, all(verdict.equal for verdict in verdicts), tables)


def _table(verdict: Verdict, limit: int) -> VerifyTable:
    name, found = f"{verdict.source}.{verdict.local}", verdict.differences
    of = (verdict.shard, None if verdict.position is None else str(verdict.position))
    if found is None:
        none = (None, None, None, None, None)
        return VerifyTable(name, verdict.table, "not compared", *none, [], verdict.error, verdict.hint, *of)
    reported = found.first[:limit] if verdict.key else []
    keys = [VerifyKey(json.loads(each.json, parse_float=str), each.how.value) for each in reported]
    result = "equal" if verdict.equal else "different"
    counts = (found.rows_compared, found.count, found.missing, found.unexpected, found.changed)
    return VerifyTable(name, verdict.table, result, *counts, keys, None, None, *of)
