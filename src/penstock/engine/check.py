"""``penstock check``: whether a database can be captured, or a source can resume. The JSON format is versioned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.catalog.store import SourceRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.catalog_records import instance_of, spec_of
from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sources.interface import Checked, Source
from penstock.sources.kinds import source_of_urls, url_schemes

__all__ = ["CheckFinding", "CheckReport", "CheckTable", "check_database", "check_sources", "is_database_url"]

_VERSION = 1


@dataclass(frozen=True)
class CheckTable:
    """A selected table, and whether it can be captured."""

    name: str
    capturable: bool


@dataclass(frozen=True)
class CheckFinding:
    """One problem or note, with the reason, a hint and the SQL that fixes it."""

    level: str
    object: str
    why: str
    hint: str
    sql: list[str]


@dataclass(frozen=True)
class CheckReport:
    """The result of a check; `ready` says whether capture can start."""

    version: int
    at: str
    source: str | None
    ready: bool
    tables: list[CheckTable]
    findings: list[CheckFinding]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document of ``penstock check --json``."""
        return asdict(self)


def is_database_url(text: str) -> bool:
    """Return whether a text is a URL that some kind of source accepts."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in url_schemes()


def check_database(url: str, **options: Any) -> CheckReport:
    """Check a database that is not captured yet."""
    source = source_of_urls([url], **options)
    return _report(source, None, source.check())


def check_sources(sources: Sequence[tuple[ChangeLog, SourceRecord]]) -> CheckReport:
    """Check whether the upstream objects that a source, or each of its shards, needs exist and are intact."""
    if len(sources) == 1:
        return _check_source(*sources[0])
    reports = {record.shard or record.name: _check_shard(log, record) for log, record in sources}
    capturable: dict[str, bool] = {}
    for table in (table for report in reports.values() for table in report.tables):
        capturable[table.name] = table.capturable and capturable.get(table.name, True)
    return CheckReport(
        _VERSION,
        ", ".join(report.at for report in reports.values()),
        sources[0][1].known_as,
        all(report.ready for report in reports.values()),
        [CheckTable(*table) for table in capturable.items()],
        [replace(f, object=f"shard {shard}: {f.object}") for shard, r in reports.items() for f in r.findings],
    )


def _check_shard(log: ChangeLog, record: SourceRecord) -> CheckReport:
    """Check one shard; an unreachable shard becomes a finding, so that the others are still reported."""
    try:
        return _check_source(log, record)
    except TransientError as error:
        finding = CheckFinding("error", "connection", error.message, error.hint, [])
        return CheckReport(_VERSION, spec_of(record).place(), record.name, False, [], [finding])


def _check_source(log: ChangeLog, record: SourceRecord) -> CheckReport:
    source = spec_of(record)
    return _report(source, record.name, source.check(instance_of(record), _durable(log)))


def _durable(log: ChangeLog) -> Lsn | None:
    if not log.exists():
        return None
    with closing(log.reader()) as reader:
        return reader.frontiers().durable


def _report(source: Source, name: str | None, found: Checked) -> CheckReport:
    tables = [CheckTable(str(table), capturable) for table, capturable in found.tables]
    shown = [CheckFinding(f.level.value, f.object, f.why, f.hint, list(f.sql)) for f in found.findings]
    return CheckReport(_VERSION, source.place(), name, found.ready, tables, shown)
