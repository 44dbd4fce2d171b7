"""Check: could this database be captured, can this source go on? One documented, versioned shape."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from penstock.catalog.store import SourceRecord
from penstock.changelog.interface import ChangeLog
from penstock.control.recorded import instance_of, spec_of
from penstock.positions import Lsn
from penstock.sources.family import Checked, Source
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["CheckFinding", "CheckReport", "CheckTable", "check_database", "check_source"]

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
    return _report(source, None, source.check())


def check_source(log: ChangeLog, record: SourceRecord) -> CheckReport:
    """Look at a source that is there: whether all that it needs outside is still as it should be."""
    source = spec_of(record)
    return _report(source, record.name, source.check(instance_of(record), _durable(log)))


def _durable(log: ChangeLog) -> Lsn | None:
    if not log.exists():
        return None
    with closing(log.reader()) as reader:
        return reader.frontiers().durable


def _report(source: Source, name: str | None, found: Checked) -> CheckReport:
    tables = [CheckTable(str(table), capturable) for table, capturable in found.tables]
    shown = [CheckFinding(f.level.value, f.object, f.why, f.remedy, list(f.sql)) for f in found.findings]
    return CheckReport(_VERSION, source.place(), name, found.ready, tables, shown)
