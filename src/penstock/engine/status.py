"""Reads the status of a home from its catalog, its logs and the upstream systems."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from penstock.catalog.progress import CopyProgress
from penstock.catalog.sinks import SinkRecord
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, Debt, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLogReader, Frontiers, Lease, LoggedTable
from penstock.engine.capture_errors import capture_errors
from penstock.engine.catalog_records import debt_of, instance_of
from penstock.engine.lifecycle import HALF
from penstock.engine.locks import holder
from penstock.engine.run_state import read_run_state
from penstock.engine.sink_progress import SinkProgress, sink_progress
from penstock.engine.sinks import AnySink, sink_of
from penstock.engine.status_document import (
    VERSION,
    DebtStatus,
    DiskStatus,
    HomeStatus,
    ProcessStatus,
    ReaderStatus,
    SinkStatus,
    SourceStatus,
    TableStatus,
)
from penstock.engine.upstream_watches import UpstreamWatches
from penstock.errors import HistoryExpiredError
from penstock.layout import state_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.upstream_status import UpstreamStatus

__all__ = ["home_status", "leftovers"]

_RETRIED = "these upstream objects could not be removed; each later start retries, or run by hand:"
_NOT_OWNED = "these upstream objects were left in place, because another home may use them:"


def home_status(home: Path, catalog: Catalog, watches: UpstreamWatches | None = None) -> HomeStatus:
    """Return the current status of a home; `watches` keep their connections for the next call."""
    running, records = holder(home), catalog.sources()
    asked = [record for record in records if record.state not in HALF]
    if watches is not None:
        watches.keep({record.name for record in asked})
    ask = _ask_once if watches is None else watches.status
    with ThreadPoolExecutor(max(1, len(asked)), "penstock-status") as pool:  # a server that is down delays none
        answers = {record.name: pool.submit(ask, record) for record in asked}
        found = [_source(home, catalog, record, running) for record in records]
    sources = [_with_upstream(each, answers[each.name].result() if each.name in answers else None) for each in found]
    debts = [_debt(debt) for debt in catalog.debts()]
    return HomeStatus(VERSION, str(home), running, sources, debts, _sinks(home, catalog), _process(home), _disk(home))


def _ask_once(source: SourceRecord) -> UpstreamStatus | None:
    return instance_of(source).upstream_status()


def _process(home: Path) -> ProcessStatus | None:
    found = read_run_state(home)
    if found is None:
        return None
    return ProcessStatus(found.pid, found.state, found.since, found.started, found.restarts, found.alarm())


def _disk(home: Path) -> DiskStatus | None:
    with suppress(OSError):
        found = shutil.disk_usage(home)
        return DiskStatus(found.free, found.total)
    return None


def _with_upstream(source: SourceStatus, found: UpstreamStatus | None) -> SourceStatus:
    """Return the status of a source with the answer of its upstream."""
    if found is None or source.durable is None:
        return source
    lag = max(0, found.end - Lsn.parse(source.durable))
    return replace(source, lag_bytes=lag, clock_skew_ms=found.clock_skew_ms, slot=found.slot)


def _sinks(home: Path, catalog: Catalog) -> list[SinkStatus]:
    return [_sink(catalog, record, _sink_reports(home, catalog, record)) for record in catalog.sinks.all()]


def _sink_reports(home: Path, catalog: Catalog, record: SinkRecord) -> dict[str, SinkProgress]:
    """Return what a sink last reported, for each source or shard of which it has written a position."""
    parts = [part.name for part in catalog.parts(record.source)]
    reports = {part: sink_progress(home, record.name, part) for part in parts}
    return {part: report for part, report in reports.items() if report is not None}


def _sink(catalog: Catalog, record: SinkRecord, reports: Mapping[str, SinkProgress]) -> SinkStatus:
    sink = sink_of(record)
    latencies = [report.latency_ms for report in reports.values() if report.latency_ms is not None]
    return SinkStatus(
        name=record.name,
        source=record.source,
        table=sink.table,
        into=sink.place(),
        envelope=sink.envelope.value,
        format=sink.format.value,
        state=record.state.value,
        position=" ".join(str(report.position) for report in reports.values()) or None,
        behind=_sum(_sink_behind(catalog, sink, part, report.position) for part, report in reports.items()),
        lag_ms=max(latencies, default=None),
        messages=_sum(report.messages for report in reports.values()),
        error=record.error,
        hint=record.hint,
    )


def _sum(numbers: Iterable[int]) -> int | None:
    """Return the sum; None if there are no numbers."""
    found = list(numbers)
    return sum(found) if found else None


def _sink_behind(catalog: Catalog, sink: AnySink, source: str, position: Lsn) -> int:
    """Return the number of images that a sink has not delivered; 0 if that history was removed."""
    log = catalog.log(source)
    if not log.exists():
        return 0
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
        tables = [table for table in catalog.tables(source) if sink.table in (None, table.local)]
        return sum(_behind(reader, table.upstream, position, durable) for table in tables)


def _debt(debt: Debt) -> DebtStatus:
    instance = debt_of(debt)
    since = datetime.fromisoformat(debt.since).replace(tzinfo=UTC)
    statements = [line for line in instance.cleanup_statements() if not line.startswith("--")]
    return DebtStatus(debt.source, instance.place(), since.isoformat(), statements, debt.error)


def _source(home: Path, catalog: Catalog, record: SourceRecord, running: int | None) -> SourceStatus:
    log = catalog.log(record.name)
    frontiers, tables, readers, size = None, [], [], None
    if record.state not in HALF and log.exists():  # otherwise the log may be incomplete
        with closing(log.reader()) as reader:
            frontiers = reader.frontiers()
            copies = catalog.progress(record.name) if running else {}  # else left by a process that died
            tables = _tables(catalog, record.name, reader, frontiers, copies)
            readers = [_reader(reader, lease, frontiers) for lease in reader.leases()]
            size = reader.size()
    instance = instance_of(record)
    return SourceStatus(
        name=record.name,
        kind=record.kind,
        at=instance.place(),
        state=record.state.value,
        valid=str(frontiers.valid) if frontiers else None,
        durable=str(frontiers.durable) if frontiers else None,
        committed_at=_moment(frontiers.committed_at if frontiers else None),
        latency_ms=_latency(frontiers),
        lag_bytes=None,
        error=record.error,
        hint=record.hint,
        log=record.log,
        tables=tables,
        readers=readers,
        part_of=record.part_of,
        shard=record.shard,
        waiting=instance.waiting(state_path(home, record.name)) if running else None,
        valid_from=instance.valid_from(state_path(home, record.name)),
        complete_until=_moment(frontiers.passed if frontiers else None),
        log_bytes=size,
        retain_history=instance.retain_history,
        capture_errors=capture_errors(home, record.name),
    )


def _reader(log: ChangeLogReader, lease: Lease, frontiers: Frontiers) -> ReaderStatus:
    lag = 0.0 if lease.at >= frontiers.durable else _milliseconds(log.time_at(lease.at), frontiers.passed)
    return ReaderStatus(lease.reader, str(lease.at), _moment(lease.expires), lag)


def _tables(
    catalog: Catalog, source: str, log: ChangeLogReader, frontiers: Frontiers, copies: Mapping[str, CopyProgress]
) -> list[TableStatus]:
    found, logged, ahead = [], log.tables(), catalog.errors_ahead(source)
    bases, changes = catalog.bases.positions(source, frontiers.durable), log.changes()
    lags, kept, rows = _BaseLags(log, frontiers), catalog.bases.kept(source), catalog.bases.rows(source)
    for table in catalog.tables(source):
        base = bases.get(table.local)
        behind = _behind(log, table.upstream, base, frontiers.durable) if base is not None else 0
        shown = _with_reader_error(table, logged.get(table.upstream), ahead.get(table.local), base)
        position = None if base is None else str(base)
        known = (f"{source}.{table.local}", str(table.upstream), shown.state.value, position, behind)
        lag = None if base is None else lags.at(base) if behind else 0.0
        status = TableStatus(*known, shown.error, shown.hint, *_copy(copies.get(table.local)))
        last = kept.get(table.local)
        readable_at = str(last.until) if last is not None and last.until >= frontiers.valid else None
        status = replace(status, changes=changes.get(table.upstream), lag_ms=lag)
        counted = None if base is None else rows.get(table.local)
        found.append(replace(status, reason=table.reason, readable_at=readable_at, rows=counted))
    return found


class _BaseLags:
    """How far base tables are behind the end of a log, in milliseconds; many of them are at the same position."""

    def __init__(self, log: ChangeLogReader, frontiers: Frontiers) -> None:
        self._log, self._end = log, frontiers.committed_at
        self._known: dict[Lsn, float] = {}

    def at(self, position: Lsn) -> float | None:
        """Return the lag of a base table at this position."""
        if self._end is None:
            return None
        if position not in self._known:
            self._known[position] = _milliseconds(self._log.time_at(position), self._end)
        return self._known[position]


def _with_reader_error(
    table: TableRecord,
    logged: LoggedTable | None,
    ahead: tuple[Lsn, str, str] | None,
    base: Lsn | None,
) -> TableRecord:
    """Return a table with the error that its readers get, which the catalog contains only once apply has reached it.

    Until then the error is in the log, or was recorded by a live view.
    """
    if table.state is not TableState.LIVE:
        return table
    if logged is not None and logged.error is not None:
        return replace(table, state=TableState.FAILED, error=logged.error.message, hint=logged.error.hint)
    if ahead is not None and (base is None or base < ahead[0]):
        return replace(table, state=TableState.FAILED, error=ahead[1], hint=ahead[2])
    return table


def _copy(copy: CopyProgress | None) -> tuple[int | None, int | None, int | None, int | None, str | None]:
    if copy is None or copy.waiting is not None:
        return None, None, None, None, copy.waiting if copy else None
    return copy.rows, copy.bytes, copy.total_rows, copy.total_bytes, None


def _behind(log: ChangeLogReader, table: TableName, base: Lsn, durable: Lsn) -> int:
    """Return the number of images that are not applied to the base table; 0 if that history was removed."""
    try:
        return log.images_within(table, base, durable)
    except HistoryExpiredError:
        return 0


def _latency(frontiers: Frontiers | None) -> float | None:
    """Return the milliseconds from the commit of the last transaction until it was readable."""
    if frontiers is None or frontiers.committed_at is None or frontiers.published_at is None:
        return None
    return _milliseconds(frontiers.committed_at, frontiers.published_at)


def _milliseconds(start: datetime, end: datetime) -> float:
    return round((end - start).total_seconds() * 1000, 1)


def _moment(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds") if moment else None


def leftovers(status: HomeStatus, left: Sequence[str]) -> list[str]:
    """Report what `Home.drop` left upstream: debts are retried, objects that may belong to another home are not."""
    if not left:
        return []
    owed = {statement for debt in status.debts for statement in debt.statements}
    return [_RETRIED if owed.intersection(left) else _NOT_OWNED, *left]
