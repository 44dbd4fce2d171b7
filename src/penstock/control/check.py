"""Check: could this database be captured, can this source go on? One documented, versioned shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import psycopg

from penstock.catalog.store import SourceRecord
from penstock.changelog.interface import ChangeLog
from penstock.control.lifecycle import instance_of, spec_of
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect, connection_error, place
from penstock.sources.postgres.findings import Finding, error
from penstock.sources.postgres.preflight import Preflight
from penstock.sources.postgres.slot import SlotInUse, check_slot, find_slot
from penstock.sources.postgres.spec import PostgresInstanceConfig, PostgresSource

__all__ = ["CheckFinding", "CheckReport", "CheckTable", "check_database", "check_sources"]

_VERSION = 1


@dataclass(frozen=True)
class CheckTable:
    """A table that was asked for, and whether it can be captured."""

    name: str
    capturable: bool


@dataclass(frozen=True)
class CheckFinding:
    """One thing that was found."""

    level: str
    object: str
    why: str
    remedy: str
    sql: list[str]


@dataclass(frozen=True)
class CheckReport:
    """What was found; `ready` says whether capture could start."""

    version: int
    at: str
    source: str | None
    ready: bool
    tables: list[CheckTable]
    findings: list[CheckFinding]

    def as_json(self) -> dict[str, Any]:
        """Return the shape of ``penstock check --json``."""
        return asdict(self)


def check_database(url: str, **options: Any) -> CheckReport:
    """Look at a database that is not captured yet."""
    source = PostgresSource.from_url(url, **options)
    at = place(source.connection)
    try:
        with _asking(source.connection):
            return _report(at, None, source.preflight(), [])
    except DefiniteError as refused:
        return _refused(at, None, refused)


def check_sources(sources: Sequence[tuple[ChangeLog, SourceRecord]]) -> CheckReport:
    """Look at a source that is there, or at its shards: whether all that it needs upstream is as it should be."""
    if len(sources) == 1:
        return _check_source(*sources[0])
    reports = {record.shard or record.name: _check_shard(log, record) for log, record in sources}
    tables = {table.name: table.capturable for report in reports.values() for table in report.tables}
    for report in reports.values():
        tables |= {table.name: False for table in report.tables if not table.capturable}
    return CheckReport(
        _VERSION,
        ", ".join(report.at for report in reports.values()),
        sources[0][1].known_as,
        all(report.ready for report in reports.values()),
        [CheckTable(name, capturable) for name, capturable in tables.items()],
        [replace(f, object=f"shard {shard}: {f.object}") for shard, r in reports.items() for f in r.findings],
    )


def _check_shard(log: ChangeLog, record: SourceRecord) -> CheckReport:
    """Look at one of several: that it cannot be reached keeps nothing from being said of the others."""
    try:
        return _check_source(log, record)
    except TransientError as error:
        return _refused(place(spec_of(record).connection), record.name, error)


def _check_source(log: ChangeLog, record: SourceRecord) -> CheckReport:
    source, instance = spec_of(record), instance_of(record)
    at = place(source.connection)
    captured = frozenset(table.name for table in instance.tables)
    refused = frozenset(TableName.parse(name) for name in instance.refused)
    try:
        with _asking(source.connection):
            found = source.preflight(captured=captured, refused=refused)
            return _report(at, record.name, found, _check_position(log, instance))
    except DefiniteError as error:
        return _refused(at, record.name, error)


@contextmanager
def _asking(conninfo: str) -> Iterator[None]:
    """Tell in our words what Postgres says while it is asked."""
    try:
        yield
    except psycopg.Error as error:
        raise connection_error(error, conninfo) from error


def _check_position(log: ChangeLog, instance: PostgresInstanceConfig) -> list[Finding]:
    """Hold the slot against what the log has; that somebody reads it is as it should be."""
    durable = instance.start()
    if log.exists():
        with closing(log.reader()) as reader:
            durable = Lsn(max(durable, reader.frontiers().durable))
    with connect(instance.connection) as connection:
        state = find_slot(connection, instance.slot)
    try:
        check_slot(state, instance.slot, instance.source, durable)
    except SlotInUse:
        return []
    except DefiniteError as lost:
        return [error("slot", lost.message, lost.remedy)]
    return []


def _report(at: str, source: str | None, found: Preflight, more: list[Finding]) -> CheckReport:
    capturable = {table.name for table in found.capturable()}
    tables = [CheckTable(str(table.name), table.name in capturable) for table, _ in found.tables]
    findings = list(dict.fromkeys([*more, *found.findings()]))
    ready = not more and not found.blocking() and bool(found.tables)
    if not found.tables and not found.blocking():
        findings.append(error("database", "there is no table to capture", "Create one, or name another database."))
    shown = [CheckFinding(f.level.value, f.object, f.why, f.remedy, list(f.sql)) for f in findings]
    return CheckReport(_VERSION, at, source, ready, tables, shown)


def _refused(at: str, source: str | None, refused: PenstockError) -> CheckReport:
    finding = CheckFinding("error", "connection", refused.message, refused.remedy, [])
    return CheckReport(_VERSION, at, source, False, [], [finding])
