"""The verdict on the status page: its first line, the answer to "is all well?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.server.page.levels import Level
from penstock.server.page.problems import Problem
from penstock.server.page.quantities import lag_text, number_text, rate_text
from penstock.server.page.rows import SinkRow, SourceView, TableRow

__all__ = ["Verdict", "judge"]


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


def judge(
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
