"""Changes of states and errors in the catalog, as events of the log.

Capture runs in other processes, and other commands change the catalog. The running home therefore compares the catalog
with what it last saw, once a second, and reports each change once: a source that lost its connection, that recovered,
that failed; a table that is live; a sink with an error.
"""

from __future__ import annotations

from penstock.catalog.states import SinkState, SourceState, TableState
from penstock.catalog.store import Catalog
from penstock.engine.table import Progress
from penstock.event_log import Event, Level

__all__ = ["StateEvents"]


class StateEvents:
    """Reports the changes of one catalog; used by one thread."""

    def __init__(self, catalog: Catalog, progress: Progress) -> None:
        """Begin with the present states, which are not reported."""
        self._catalog = catalog
        self._progress = progress
        self._errors = {name: error for name, (_, error) in self._failing().items()}
        self._live = self._live_tables()

    def look(self) -> None:
        """Report what changed since the last call."""
        self._report_errors()
        live = self._live_tables()
        for source, table in sorted(live - self._live):
            self._progress(Event(f"{source}: {table} is live", "table_live", source=source, table=table))
        self._live = live

    def _report_errors(self) -> None:
        failing = self._failing()
        for (kind, name), (failed, error) in failing.items():
            if error is not None and error != self._errors.get((kind, name)):
                again = "" if failed else "; retrying"
                self._report(kind, name, f"{error}{again}", f"{kind}_error", "error" if failed else "warning")
            elif error is None and self._errors.get((kind, name)) is not None:
                self._report(kind, name, "resumed", f"{kind}_resumed")
        self._errors = {name: error for name, (_, error) in failing.items()}

    def _report(self, kind: str, name: str, text: str, event: str, level: Level = "info") -> None:
        called = f"sink {name}" if kind == "sink" else name
        self._progress(Event(f"{called}: {text}", event, level, **{kind: name}))

    def _failing(self) -> dict[tuple[str, str], tuple[bool, str | None]]:
        """Return each source and sink, whether it has failed, and its error."""
        sources = {
            ("source", record.name): (record.state is SourceState.FAILED, record.error)
            for record in self._catalog.sources()
        }
        sinks = {
            ("sink", record.name): (False, record.error)
            for record in self._catalog.sinks.all()
            if record.state is not SinkState.FAILED  # the sink itself reports why it failed
        }
        return {**sources, **sinks}

    def _live_tables(self) -> set[tuple[str, str]]:
        return {(t.source, str(t.upstream)) for t in self._catalog.tables() if t.state is TableState.LIVE}
