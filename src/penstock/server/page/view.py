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

from dataclasses import dataclass
from datetime import datetime

from penstock.errors import PenstockError
from penstock.server.page.levels import Level
from penstock.server.page.problems import Problem, find_problems
from penstock.server.page.quantities import size_text
from penstock.server.page.rows import Document, SinkRow, SourceView, TableRow, sink_row, source_view
from penstock.server.page.verdict import Verdict, judge

__all__ = ["PageView", "ReaderRow", "page_view", "unreadable_view"]

_SHOWN_PROBLEMS = 6
_ORDER: tuple[Level, ...] = ("critical", "warning", "busy", "idle", "ok")
"""Tables that need attention are listed first, the others in the order of the status."""


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
    sources = tuple(source_view(found, series, now) for found in document.get("sources", ()))
    found_tables = (table for source in sources for table in source.tables)
    tables = tuple(sorted(found_tables, key=lambda table: _ORDER.index(table.level)))
    sinks = tuple(sink_row(found, series) for found in document.get("sinks", ()))
    problems = find_problems(document, sources, sinks, now)
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
        verdict=judge(sources, tables, sinks, problems, running is not None, spark),
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
