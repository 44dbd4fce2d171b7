"""``penstock check``: whether a database can be captured, or a source can resume. The JSON format is versioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.catalog.store import SourceRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.catalog_records import instance_of, spec_of
from penstock.engine.table_names import unique_local_names
from penstock.errors import TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.interface import Checked, Source
from penstock.sources.kinds import kind_of_scheme, source_of_urls

__all__ = [
    "CheckFinding",
    "CheckReport",
    "CheckTable",
    "CheckedSource",
    "check_database",
    "check_sources",
    "is_database_url",
]

_VERSION = 1


@dataclass(frozen=True)
class CheckTable:
    """A selected table, whether it can be captured, and the name of its live table."""

    name: str
    capturable: bool
    live: str


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
    return bool(separator and scheme) and kind_of_scheme(scheme) is not None


def check_database(url: str, **options: Any) -> CheckReport:
    """Check a database that is not captured yet."""
    source = source_of_urls([url], **options)
    found = source.check()
    tables = sorted(found.tables, key=lambda table: not table[1])  # as in the catalog: see `local_names`
    return _report(source, None, found, unique_local_names([name for name, _ in tables], found.aliases))


@dataclass(frozen=True)
class CheckedSource:
    """A source to check, with its log and the local names of its tables."""

    log: ChangeLog
    record: SourceRecord
    names: Mapping[TableName, str]


def check_sources(sources: Sequence[CheckedSource]) -> CheckReport:
    """Check whether the upstream objects that a source, or each of its shards, needs exist and are intact."""
    if len(sources) == 1:
        return _check_source(sources[0])
    reports = {source.record.shard or source.record.name: _check_shard(source) for source in sources}
    tables: dict[str, CheckTable] = {}
    for table in (table for report in reports.values() for table in report.tables):
        known = tables.setdefault(table.name, table)
        tables[table.name] = replace(known, capturable=table.capturable and known.capturable)
    return CheckReport(
        _VERSION,
        ", ".join(report.at for report in reports.values()),
        sources[0].record.known_as,
        all(report.ready for report in reports.values()),
        list(tables.values()),
        [replace(f, object=f"shard {shard}: {f.object}") for shard, r in reports.items() for f in r.findings],
    )


def _check_shard(source: CheckedSource) -> CheckReport:
    """Check one shard; an unreachable shard becomes a finding, so that the others are still reported."""
    try:
        return _check_source(source)
    except TransientError as error:
        finding = CheckFinding("error", "connection", error.message, error.hint, [])
        return CheckReport(_VERSION, spec_of(source.record).place(), source.record.name, False, [], [finding])


def _check_source(source: CheckedSource) -> CheckReport:
    record, spec = source.record, spec_of(source.record)
    return _report(spec, record.known_as, spec.check(instance_of(record), _durable(source.log)), source.names)


def _durable(log: ChangeLog) -> Lsn | None:
    if not log.exists():
        return None
    with closing(log.reader()) as reader:
        return reader.frontiers().durable


def _report(source: Source, name: str | None, found: Checked, names: Mapping[TableName, str]) -> CheckReport:
    live = {table: f"{name or source.name}.{names.get(table, table.name)}" for table, _ in found.tables}
    tables = [CheckTable(str(table), capturable, live[table]) for table, capturable in found.tables]
    shown = [
        CheckFinding("info", str(table), f"found as {live[table]}", "", [])
        for table, capturable in found.tables
        if capturable and names.get(table, table.name) not in (table.name, found.aliases.get(table))
    ]
    shown += [CheckFinding(f.level.value, f.object, f.why, f.hint, list(f.sql)) for f in found.findings]
    return CheckReport(_VERSION, source.place(), name, found.ready, tables, shown)
