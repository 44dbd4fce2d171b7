"""What the status page shows, from a status document: the verdict, problems, tables, sources, sinks and readers.

::

    status document ─┐
    latest sample   ─┼─▶ page_view ─▶ PageView ─▶ templates/page.html
    state of Spark  ─┘

The document is that of ``penstock status --json``. A field that it does not have is unknown, as is one that is null:
the page then shows a dash, and never a zero. Nothing here reads a file or a clock, so every state of a home can be
tested with a document alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from penstock.errors import PenstockError
from penstock.server.page.quantities import age_text, count_text, lag_text, number_text, rate_text, size_text

__all__ = [
    "Document",
    "Level",
    "PageView",
    "Problem",
    "ReaderRow",
    "SinkRow",
    "SlotView",
    "SourceView",
    "TableRow",
    "Verdict",
    "page_view",
    "unreadable_view",
    "worst",
]

Document = Mapping[str, Any]
Level = Literal["ok", "busy", "warning", "critical", "idle"]
"""How well a thing is: `busy` works towards `ok`, `idle` does nothing, `warning` and `critical` need attention."""

_SHOWN_PROBLEMS = 6
_WARN_SLOT, _CRITICAL_SLOT = 0.5, 0.8
_TABLE_LEVELS: dict[str, Level] = {
    "live": "ok",
    "pending": "busy",
    "adding": "busy",
    "retrying": "busy",
    "dropping": "idle",
    "failed": "critical",
}
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
_LEVELS: tuple[Level, ...] = ("critical", "warning", "busy", "ok", "idle")
_ORDER: tuple[Level, ...] = ("critical", "warning", "busy", "idle", "ok")
"""Tables that need attention are listed first, the others in the order of the status."""


@dataclass(frozen=True)
class Verdict:
    """The answer to "is all well?".

    `headline` changes only with the state, so that a screen reader announces it once; `lag` and `detail` change with
    every sample.
    """

    level: Level
    headline: str
    lag: str
    detail: str


@dataclass(frozen=True)
class Problem:
    """An alarm or an error, and what to do about it; `title` says in a few words what an alarm is about."""

    level: Level
    subject: str
    message: str
    hint: str | None
    since: str | None
    title: str = ""


@dataclass(frozen=True)
class TableRow:
    """A table; numbers that are unknown are None. `fraction` is that of its snapshot."""

    name: str
    source: str
    upstream: str
    state: str
    level: Level
    rows: int | None
    rate: float | None
    behind: int | None
    lag_ms: float | None
    position: str | None
    fraction: float | None
    progress: str | None
    waiting: str | None
    error: str | None
    hint: str | None


@dataclass(frozen=True)
class SlotView:
    """A replication slot; `fraction` is the share of the WAL that it may retain, None without a limit."""

    name: str
    state: str
    level: Level
    retained: str | None
    limit: str | None
    fraction: float | None
    confirmed: str | None


@dataclass(frozen=True)
class SourceView:
    """A source, or one shard of it; `group` is the name under which shards are queried together."""

    name: str
    group: str
    shard: str | None
    kind: str
    at: str
    state: str
    level: Level
    status: str
    rate: float | None
    latency_ms: float | None
    lag_bytes: int | None
    durable: str | None
    valid: str | None
    committed: str | None
    committed_at: str | None
    log: str
    log_bytes: int | None
    waiting: str | None
    error: str | None
    slot: SlotView | None
    tables: tuple[TableRow, ...]


@dataclass(frozen=True)
class SinkRow:
    """A sink."""

    name: str
    source: str
    reads: str
    into: str
    envelope: str
    format: str
    state: str
    level: Level
    position: str | None
    behind: int | None
    lag_ms: float | None
    rate: float | None
    messages: int | None
    error: str | None
    hint: str | None


@dataclass(frozen=True)
class ReaderRow:
    """A reader of the history of a source; `expires` is None if it is registered and never expires."""

    source: str
    name: str
    position: str
    expires: str | None


@dataclass(frozen=True)
class PageView:
    """All that the page shows.

    `spark` says what is done about Spark while it is not up, and `more_problems` is the number of problems beyond those
    listed.
    """

    home: str
    running: int | None
    spark: str | None
    verdict: Verdict
    problems: tuple[Problem, ...]
    more_problems: int
    sources: tuple[SourceView, ...]
    tables: tuple[TableRow, ...]
    sinks: tuple[SinkRow, ...]
    readers: tuple[ReaderRow, ...]
    disk: str | None
    is_empty: bool
    taken_at: datetime


def page_view(document: Document, series: Document, spark: str | None, now: datetime) -> PageView:
    """Return what the page shows.

    Args:
        document: The status document.
        series: The latest value of each series of the history, such as ``{"source:shop": {"rate": 12.5}}``.
        spark: None if Spark is up, otherwise what is done about it, such as ``Spark is starting``.
        now: The current time, for ages.
    """
    sources = tuple(_source(found, series, now) for found in document.get("sources", ()))
    found_tables = (table for source in sources for table in source.tables)
    tables = tuple(sorted(found_tables, key=lambda table: _ORDER.index(table.level)))
    sinks = tuple(_sink(found, series) for found in document.get("sinks", ()))
    problems = _problems(document, sources, sinks, now)
    readers = [
        ReaderRow(str(found["name"]), reader["name"], reader["position"], reader.get("expires"))
        for found in document.get("sources", ())
        for reader in found.get("readers", ())
    ]
    running = document.get("running")
    return PageView(
        home=str(document.get("home", "")),
        running=running,
        spark=spark,
        verdict=_verdict(sources, tables, sinks, problems, running is not None, spark),
        problems=tuple(problems[:_SHOWN_PROBLEMS]),
        more_problems=max(0, len(problems) - _SHOWN_PROBLEMS),
        sources=sources,
        tables=tables,
        sinks=sinks,
        readers=tuple(readers),
        disk=_disk(document.get("disk")),
        is_empty=not sources,
        taken_at=now,
    )


def _disk(found: Document | None) -> str | None:
    return f"{size_text(found['free_bytes'])} free of {size_text(found['total_bytes'])}" if found else None


def unreadable_view(error: PenstockError, home: str, now: datetime) -> PageView:
    """Return what the page shows if the status of the home cannot be read."""
    problem = Problem("critical", "home", error.message, error.hint, None)
    verdict = Verdict(
        "critical", "The status cannot be read", "", "Capture may go on. The page tries again every second."
    )
    return PageView(home, None, None, verdict, (problem,), 0, (), (), (), (), None, is_empty=False, taken_at=now)


def worst(levels: Iterable[Level]) -> Level:
    """Return the level that needs attention most; `idle` if there is none."""
    found = set(levels)
    return next((level for level in _LEVELS if level in found), "idle")


# -- sources, tables, sinks --------------------------------------------------------------------------------------------


def _source(found: Document, series: Document, now: datetime) -> SourceView:
    name = str(found["name"])
    tables = tuple(_table(table, name, series) for table in found.get("tables", ()))
    level, status = _source_status(found, tables)
    return SourceView(
        name=name,
        group=found.get("part_of") or name,
        shard=found.get("shard"),
        kind=str(found.get("kind", "")),
        at=str(found.get("at", "")),
        state=str(found.get("state", "")),
        level=level,
        status=status,
        rate=_latest(series, f"source:{name}", "rate"),
        latency_ms=None if found.get("waiting") or found.get("error") else found.get("latency_ms"),
        lag_bytes=found.get("lag_bytes"),
        durable=found.get("durable"),
        valid=found.get("valid"),
        committed=age_text(found.get("committed_at"), now),
        committed_at=found.get("committed_at"),
        log=found.get("log") or "in the home",
        log_bytes=found.get("log_bytes"),
        waiting=found.get("waiting"),
        error=found.get("error"),
        slot=_slot(found.get("slot")),
        tables=tables,
    )


def _source_status(found: Document, tables: Sequence[TableRow]) -> tuple[Level, str]:
    state = str(found.get("state", ""))
    if state == "failed":
        return "critical", "failed"
    if state in ("creating", "dropping"):
        return "busy", state
    if found.get("error"):
        return "warning", "retrying"
    if found.get("waiting"):
        return "warning", "waiting"
    if any(table.state in ("pending", "adding", "retrying") for table in tables):
        return "busy", "snapshot"
    return "ok", "streaming"


def _table(found: Document, source: str, series: Document) -> TableRow:
    name, state = str(found["name"]), str(found.get("state", ""))
    level = _TABLE_LEVELS.get(state, "idle")
    if level == "ok" and found.get("error"):
        level = "warning"
    fraction, progress = _snapshot(found) if state != "live" else (None, None)
    return TableRow(
        name=name,
        source=source,
        upstream=str(found.get("upstream", "")),
        state=state,
        level=level,
        rows=found.get("rows"),
        rate=_latest(series, f"table:{name}", "rate"),
        behind=found.get("behind"),
        lag_ms=found.get("lag_ms"),
        position=found.get("position"),
        fraction=fraction,
        progress=progress,
        waiting=found.get("waiting"),
        error=found.get("error"),
        hint=found.get("hint"),
    )


def _snapshot(found: Document) -> tuple[float | None, str | None]:
    """Return the progress of a snapshot as a fraction, and in words; the estimate of Postgres may be too low."""
    copied, estimated = found.get("copied_rows"), found.get("estimated_rows")
    if copied is None:
        return None, None
    if not estimated:
        return None, f"{count_text(copied)} rows copied"
    return min(copied / estimated, 0.99), f"{count_text(copied)} of about {count_text(max(copied, estimated))} rows"


def _slot(found: Document | None) -> SlotView | None:
    if not found:
        return None
    retained, safe = found.get("retained_bytes"), found.get("safe_bytes")
    fraction = None
    if retained is not None and safe is not None:
        fraction = min(1.0, retained / (retained + safe)) if safe > 0 else 1.0
    lost = found.get("wal_status") == "lost" or bool(found.get("invalidated"))
    state = "in use" if found.get("active") else "not in use"
    if lost:
        state = f"invalidated: {found['invalidated']}" if found.get("invalidated") else "lost"
    level: Level = "ok" if found.get("active") else "warning"
    if lost or (fraction is not None and fraction >= _CRITICAL_SLOT):
        level = "critical"
    elif found.get("wal_status") in ("extended", "unreserved") or (fraction is not None and fraction >= _WARN_SLOT):
        level = "warning"
    return SlotView(
        name=str(found.get("name", "")),
        state=state,
        level=level,
        retained=None if retained is None else size_text(retained),
        limit=size_text(retained + max(safe, 0)) if retained is not None and safe is not None else None,
        fraction=fraction,
        confirmed=found.get("confirmed"),
    )


def _sink(found: Document, series: Document) -> SinkRow:
    name, state = str(found["name"]), str(found.get("state", ""))
    level: Level = "critical" if state == "failed" else "busy" if state == "dropping" else "ok"
    if level == "ok" and found.get("error"):
        level = "warning"
    table = found.get("table")
    return SinkRow(
        name=name,
        source=str(found.get("source", "")),
        reads=str(found.get("source", "")) if table is None else f"{found.get('source', '')}.{table}",
        into=str(found.get("into", "")),
        envelope=str(found.get("envelope", "")),
        format=str(found.get("format", "")),
        state=state,
        level=level,
        position=found.get("position"),
        behind=found.get("behind"),
        lag_ms=found.get("lag_ms"),
        rate=_latest(series, f"sink:{name}", "rate"),
        messages=found.get("messages"),
        error=found.get("error"),
        hint=found.get("hint"),
    )


def _latest(series: Document, name: str, metric: str) -> float | None:
    value = series.get(name, {}).get(metric)
    return None if value is None else float(value)


# -- problems ----------------------------------------------------------------------------------------------------------


def _problems(
    document: Document, sources: Sequence[SourceView], sinks: Sequence[SinkRow], now: datetime
) -> list[Problem]:
    """Return alarms and errors, the most urgent first. An error that an alarm reports too is listed once."""
    alarms = [_alarm(alarm, now) for alarm in document.get("alarms", ())]
    errors = [*_source_errors(document, sources), *_table_errors(sources), *_sink_errors(sinks), *_debts(document, now)]
    reported = {(alarm.subject, alarm.message) for alarm in alarms}
    found = [*alarms, *(error for error in errors if (error.subject, error.message) not in reported)]
    return sorted(found, key=lambda problem: _LEVELS.index(problem.level))


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


# -- verdict -----------------------------------------------------------------------------------------------------------


def _verdict(
    sources: Sequence[SourceView],
    tables: Sequence[TableRow],
    sinks: Sequence[SinkRow],
    problems: Sequence[Problem],
    is_running: bool,
    spark: str | None,
) -> Verdict:
    """Return the first that applies; what needs an operator comes before what goes on by itself."""
    failed = _failures(sources, tables, sinks)
    live = _live_text(tables)
    if not sources:
        return Verdict("ok", "Ready for a first source", "", "This home has no sources yet.")
    if not is_running:
        return Verdict("idle", "Nothing is running", "", f"{live} Start capture with: penstock run")
    if failed:
        return Verdict("critical", failed, "", live)
    if any(problem.level == "critical" for problem in problems):
        return Verdict("critical", _first(problems, "critical"), "", live)
    if spark is not None:
        detail = f"Snapshots, merges and queries follow as soon as it is up. {live}"
        return Verdict("busy", spark[:1].upper() + spark[1:], "", detail)
    if lost := [source for source in sources if source.level == "warning"]:
        return _waiting(lost)
    if any(problem.level == "warning" for problem in problems):
        return Verdict("warning", _first(problems, "warning"), "", f"{live}{_flow_text(sources)}")
    if pending := [table for table in tables if table.level == "busy"]:
        return _snapshots(pending, tables, live)
    return Verdict("ok", _all_live(tables), _lag(sources), _flow_text(sources).strip() or "Waiting for changes.")


def _failures(sources: Sequence[SourceView], tables: Sequence[TableRow], sinks: Sequence[SinkRow]) -> str:
    named = {
        "source": [source.name for source in sources if source.level == "critical"],
        "table": [table.name for table in tables if table.level == "critical"],
        "sink": [sink.name for sink in sinks if sink.level == "critical"],
    }
    parts = [f"{number_text(len(names), what)} failed" for what, names in named.items() if names]
    only = [names[0] for names in named.values() if names]
    one = len(parts) == 1 and sum(map(len, named.values())) == 1 and len(only[0]) <= 48
    return f"{parts[0]}: {only[0]}" if one else ", ".join(parts)


def _first(problems: Sequence[Problem], level: Level) -> str:
    """Return the only problem of a level in a few words, or the number of problems."""
    found = [problem for problem in problems if problem.level == level]
    what = found[0].title or ("Error" if level == "critical" else "Retrying")
    if len(found) > 1:
        return number_text(len(found), "alarm" if level == "critical" else "warning")
    return what if found[0].subject == "home" else f"{what}: {found[0].subject}"


def _waiting(lost: Sequence[SourceView]) -> Verdict:
    names = ", ".join(source.name for source in lost[:3])
    verb = "is" if len(lost) == 1 else "are"
    headline = f"{number_text(len(lost), 'source')} {verb} waiting: {names}{' …' if len(lost) > 3 else ''}"
    ages = [source.committed for source in lost if source.committed]
    since = f" The last transaction of {lost[0].name} was committed {ages[0]}." if ages else ""
    return Verdict("warning", headline, "", f"Capture retries by itself, and tables stay readable.{since}")


def _snapshots(pending: Sequence[TableRow], tables: Sequence[TableRow], live: str) -> Verdict:
    fractions = [table.fraction or 0.0 for table in pending]
    share = (len(tables) - len(pending) + sum(fractions)) / len(tables)
    return Verdict("busy", f"Snapshot of {number_text(len(pending), 'table')} in progress", f"{share:.0%} done", live)


def _all_live(tables: Sequence[TableRow]) -> str:
    if not tables:
        return "Streaming, no tables yet"
    return "The table is live" if len(tables) == 1 else f"All {len(tables)} tables live"


def _live_text(tables: Sequence[TableRow]) -> str:
    live = sum(table.state == "live" for table in tables)
    return f"{live} of {number_text(len(tables), 'table')} live." if tables else ""


def _lag(sources: Sequence[SourceView]) -> str:
    known = [source.latency_ms for source in sources if source.latency_ms is not None]
    return f"{lag_text(max(known))} behind" if known else ""


def _flow_text(sources: Sequence[SourceView]) -> str:
    rates = [source.rate for source in sources if source.rate is not None]
    if not rates:
        return ""
    total, among = sum(rates), number_text(len(sources), "source")
    return (
        f" {rate_text(total).replace('/s', ' changes/s')} from {among}."
        if total
        else f" No changes from {among} at the moment."
    )
