"""The alarms and errors on the status page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.server.page.levels import LEVELS, Level
from penstock.server.page.quantities import age_text
from penstock.server.page.rows import Document, SinkRow, SourceView

__all__ = ["Problem", "find_problems"]

_TITLES = {
    "clock_skew": "Clocks disagree",
    "disk_full": "Paused: the disk is full",
    "disk_low": "Disk space is low",
    "history_held": "A reader holds history back",
    "no_progress": "No progress",
    "slot_at_risk": "Slot about to be lost",
    "slot_lost": "Slot lost",
    "spark_lost": "Spark is lost again and again",
    "wal_retained": "WAL piles up",
}
"""Codes of alarms, in a few words for the verdict."""


@dataclass(frozen=True)
class Problem:
    """An alarm or an error, and what to do about it; `title` says in a few words what an alarm is about."""

    level: Level
    subject: str
    message: str
    hint: str | None
    since: str | None
    title: str = ""


def find_problems(
    document: Document, sources: Sequence[SourceView], sinks: Sequence[SinkRow], now: datetime
) -> list[Problem]:
    """Return alarms and errors, the most urgent first. An error that an alarm reports too is listed once."""
    alarms = [_alarm(alarm, now) for alarm in document.get("alarms", ())]
    errors = [*_source_errors(document, sources), *_table_errors(sources), *_sink_errors(sinks), *_debts(document, now)]
    reported = {(alarm.subject, alarm.message) for alarm in alarms}
    found = [*alarms, *(error for error in errors if (error.subject, error.message) not in reported)]
    return sorted(found, key=lambda problem: LEVELS.index(problem.level))


def _alarm(found: Document, now: datetime) -> Problem:
    place = [found.get("source"), found.get("table") or found.get("sink")]
    named = [str(part) for part in place if part]
    subject = named[-1] if len(named) == 2 and named[-1].startswith(f"{named[0]}.") else ".".join(named)
    level: Level = "critical" if found.get("level") == "critical" else "warning"
    return Problem(
        *(level, subject or "home", str(found.get("message", "")), found.get("hint")),
        *(age_text(found.get("since"), now), _TITLES.get(str(found.get("code")), "")),
    )


def _source_errors(document: Document, sources: Sequence[SourceView]) -> list[Problem]:
    hints = {found["name"]: found.get("hint") for found in document.get("sources", ())}
    return [
        Problem(source.level, source.name, source.error, hints.get(source.name), None)
        for source in sources
        if source.error
    ]


def _table_errors(sources: Sequence[SourceView]) -> list[Problem]:
    tables = (table for source in sources for table in source.tables)
    return [Problem(table.level, table.name, table.error, table.hint, None) for table in tables if table.error]


def _sink_errors(sinks: Sequence[SinkRow]) -> list[Problem]:
    return [Problem(sink.level, sink.name, sink.error, sink.hint, None) for sink in sinks if sink.error]


def _debts(document: Document, now: datetime) -> list[Problem]:
    return [
        Problem(
            "warning",
            str(debt["source"]),
            f"objects of this dropped source are left at {debt['at']}",
            f"Each start tries to remove them; or run there: {' '.join(debt['statements'])}",
            age_text(debt.get("since"), now),
        )
        for debt in document.get("debts", ())
    ]
