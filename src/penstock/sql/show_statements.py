"""Results of Penstock's statements: a message, or rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.catalog.repairs import Repair
from penstock.engine.status_document import HomeStatus

if TYPE_CHECKING:
    from penstock.engine.verify import VerifyReport, VerifyTable

__all__ = [
    "STATUS_TABLES",
    "Answer",
    "matching",
    "repair_summary",
    "show_errors",
    "show_readers",
    "show_repairs",
    "show_sinks",
    "show_sources",
    "show_tables",
    "status_table",
    "verify_answer",
]


@dataclass(frozen=True)
class Answer:
    """The result of a statement: a message, or columns and rows."""

    message: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | int | None]] = ()


def show_sources(status: HomeStatus) -> Answer:
    """Return the rows of ``SHOW SOURCES``."""
    columns = ("name", "kind", "state", "tables", "valid", "durable", "committed_at", "lag_bytes", "error")
    rows = [
        (s.name, s.kind, s.state, len(s.tables), s.valid, s.durable, s.committed_at, s.lag_bytes, s.error)
        for s in status.sources
    ]
    return Answer(columns=columns, rows=rows)


def show_tables(status: HomeStatus, source: str | None = None) -> Answer:
    """Return the rows of ``SHOW TABLES``."""
    columns = ("name", "upstream", "state", "position", "behind", "error")
    rows = [
        (t.name, t.upstream, t.state, t.position, t.behind, t.error)
        for s in status.sources
        if source in (None, s.name, s.part_of)
        for t in s.tables
    ]
    return Answer(columns=columns, rows=rows)


def show_sinks(status: HomeStatus) -> Answer:
    """Return the rows of ``SHOW SINKS``."""
    columns = ("name", "source", "into", "envelope", "state", "position", "behind", "error")
    rows = [(s.name, s.reads, s.into, s.envelope, s.state, s.position, s.behind, s.error) for s in status.sinks]
    return Answer(columns=columns, rows=rows)


def show_errors(status: HomeStatus) -> Answer:
    """Return the rows of ``SHOW ERRORS``: errors of sources, tables, sinks and pending cleanups, with hints."""
    source_errors = [(s.name, s.error, s.hint) for s in status.sources if s.error]
    table_errors = [(t.name, t.error, t.hint) for s in status.sources for t in s.tables if t.error]
    sink_errors = [(s.name, s.error, s.hint) for s in status.sinks if s.error]
    cleanup_errors = [(d.source, d.error, "\n".join(d.statements)) for d in status.debts if d.error]
    rows = [*source_errors, *table_errors, *sink_errors, *cleanup_errors]
    return Answer(columns=("name", "error", "hint"), rows=rows)


def show_readers(status: HomeStatus, source: str | None = None) -> Answer:
    """Return the rows of ``SHOW READERS``; a reader without an expiry is registered."""
    columns = ("name", "source", "position", "expires")
    rows = [
        (r.name, s.name, r.position, r.expires)
        for s in status.sources
        if source in (None, s.name, s.part_of)
        for r in s.readers
    ]
    return Answer(columns=columns, rows=rows)


STATUS_TABLES: Mapping[str, Callable[[HomeStatus], Answer]] = {
    "sources": show_sources,
    "tables": show_tables,
    "sinks": show_sinks,
    "errors": show_errors,
    "readers": show_readers,
}
"""The tables of the status in queries, ``penstock.NAME``."""


_NUMBERS = frozenset({"tables", "lag_bytes", "behind"})


def status_table(name: str, status: HomeStatus) -> pa.Table:
    """Return a table of the status, with the columns of the SHOW statement of that name."""
    answer = STATUS_TABLES[name](status)
    types = [pa.int64() if column in _NUMBERS else pa.string() for column in answer.columns]
    values = zip(*answer.rows, strict=True) if answer.rows else [()] * len(types)
    columns = [pa.array(column, kind) for column, kind in zip(values, types, strict=True)]
    return pa.Table.from_arrays(columns, names=list(answer.columns))


def matching(answer: Answer, like: str | None) -> Answer:
    """Return the rows whose name matches a pattern; that of a table matches with or without its source."""
    if like is None:
        return answer
    parts = (".*" if part == "%" else "." if part == "_" else re.escape(part) for part in re.split("([%_])", like))
    pattern = re.compile("".join(parts), re.DOTALL)
    rows = [row for row in answer.rows if any(map(pattern.fullmatch, _names(str(row[0]))))]
    return replace(answer, rows=rows)


def _names(name: str) -> tuple[str, str]:
    return name, name.partition(".")[2]


def show_repairs(repairs: Sequence[Repair]) -> Answer:
    """Return the rows of ``SHOW REPAIRS``."""
    columns = (
        "id",
        "table",
        "rows",
        "state",
        "asked_by",
        "asked_at",
        "low",
        "high",
        "rows_read",
        "rows_changed",
        "error",
    )
    return Answer(columns=columns, rows=[_repair_row(repair) for repair in repairs])


def repair_summary(repair: Repair) -> str:
    """Summarize a completed repair in one line."""
    rows = f"{repair.rows_read or 0:,} rows read upstream, {repair.rows_changed or 0:,} changed"
    return f"repaired {repair.source}.{repair.table}: {rows}, between positions {repair.low} and {repair.high}"


def _repair_row(repair: Repair) -> tuple[str | int | None, ...]:
    low, high = (None if position is None else str(position) for position in (repair.low, repair.high))
    chosen = repair.chosen
    keys = len(chosen.get("keys", ()))
    rows = f"{keys:,} key{'s' * (keys != 1)}" if "keys" in chosen else chosen.get("where", "all")
    request = (repair.id, f"{repair.source}.{repair.table}", rows, repair.state.value, repair.asked_by, repair.asked_at)
    return (*request, low, high, repair.rows_read, repair.rows_changed, repair.error)


def verify_answer(report: VerifyReport) -> Answer:
    """Return the rows of ``VERIFY``."""
    columns = ("table", "upstream", "result", "rows", "position", "missing", "unexpected", "changed", "keys", "error")
    rows = [
        (t.name, t.upstream, t.result, t.rows, t.position, t.missing, t.unexpected, t.changed, _keys(t), t.error)
        for t in report.tables
    ]
    return Answer(columns=columns, rows=rows)


def _keys(table: VerifyTable) -> str | None:
    return " ".join(json.dumps(found.key, ensure_ascii=False) for found in table.keys) or None
