"""Changed tables: a table that stopped because of a schema change is captured again without a request, as an option.

::

    every second, in the running home; queries of the upstream run in a thread:
      failed, by a `SchemaChangeError`    ─▶ upstream: can the table be captured as it is now?   `find_changed_tables`
        yes                               ─▶ catalog: retrying, and why      the same request as RETRY TABLE
        no                                ─▶ catalog: the hint of its error says why; later again
      failed for any other reason         ─▶ unchanged, until a user acts

The class of the error decides, never its text. The first attempt is made at once. If the table stops again, the pause
before the next attempt doubles, from `_FIRST_PAUSE` up to `_LONGEST_PAUSE`: a table that is altered repeatedly is not
copied all the time. A table that stayed live for `_SETTLED` begins with the first pause again. This is remembered in
the process only: a restart of `penstock run` begins with an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, TableRequest
from penstock.engine.catalog_records import instance_of, spec_of
from penstock.engine.table import Progress
from penstock.event_log import Event
from penstock.model import TableName
from penstock.sources.findings import Finding
from penstock.sources.produced_table import ProducedTable

__all__ = ["Attempts", "ChangedTables"]

_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0
_SETTLED = 600.0
_THREADS = 4

_Found = Mapping[TableName, ProducedTable | Finding] | None


@dataclass
class Attempts:
    """The attempts to capture a table again: how many in succession did not last, and when the next one is due."""

    count: int = 0
    _due: float | None = None
    """None while the table is not stopped."""
    _live_since: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether a table that is stopped may be captured again now."""
        self._live_since = None
        if self._due is None:
            pause = _FIRST_PAUSE * 2.0 ** min(self.count - 1, 20) if self.count else 0.0
            self._due = now + min(pause, _LONGEST_PAUSE)
        return now >= self._due

    def made(self) -> None:
        """Record an attempt: the pause before the next one begins when the table is seen to be stopped again."""
        self.count += 1
        self._due = None

    def note_live(self, now: float) -> None:
        """Record that the table is live: after a while, earlier attempts no longer count."""
        self._due = None
        self._live_since = now if self._live_since is None else self._live_since
        if now - self._live_since >= _SETTLED:
            self.count = 0


class ChangedTables:
    """Captures stopped tables of the running sources again; a server that does not answer delays only its source."""

    def __init__(self, catalog: Catalog, progress: Progress) -> None:
        self._catalog = catalog
        self._progress = progress
        self._pool = ThreadPoolExecutor(_THREADS, "penstock-changed-tables")
        self._searches: dict[str, Future[_Found]] = {}
        self._paused: dict[str, float] = {}
        """When the next query of a source is due, after one that failed."""
        self._attempts: dict[tuple[str, TableName], Attempts] = {}

    def look(self, running: Sequence[str]) -> None:
        """Record requests for the tables that the last queries found, and start the queries that are due.

        Raise the error of a query; it is made again after a pause.
        """
        for record in self._catalog.sources():
            if record.name not in running or record.state is not SourceState.READY:
                continue
            search = self._searches.get(record.name)
            if search is None:
                is_paused = time.monotonic() < self._paused.get(record.name, 0.0)
                names = [] if is_paused else self._due_tables(record.name)
                if names:
                    self._searches[record.name] = self._pool.submit(_find, record, names)
            elif search.done():
                del self._searches[record.name]
                self._paused[record.name] = time.monotonic() + _FIRST_PAUSE
                found = search.result() or {}
                del self._paused[record.name]
                self._settle(record, found)

    def close(self) -> None:
        """Start no more queries."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _due_tables(self, source: str) -> list[TableName]:
        """Return the stopped tables that may be captured again now, and note which ones are live."""
        now, found = time.monotonic(), []
        for table in self._catalog.tables(source):
            key = (source, table.upstream)
            if table.schema_changed and self._attempts.setdefault(key, Attempts()).is_due(now):
                found.append(table.upstream)
            elif table.state is TableState.LIVE and key in self._attempts:
                self._attempts[key].note_live(now)
        return found

    def _settle(self, record: SourceRecord, found: Mapping[TableName, ProducedTable | Finding]) -> None:
        stopped = {table.upstream: table for table in self._catalog.tables(record.name) if table.schema_changed}
        for name in found.keys() & stopped.keys():
            self._attempts.setdefault((record.name, name), Attempts()).made()
            answer = found[name]
            if isinstance(answer, Finding):
                self._note_refused(record, stopped[name], answer)
            else:
                self._request(record, stopped[name])

    def _request(self, record: SourceRecord, table: TableRecord) -> None:
        """Record the request; it fails, and is made again, if another process has changed the source meanwhile."""
        requested = replace(table, state=TableState.RETRYING, reason=table.error)
        self._catalog.add_requests([TableRequest(requested, (record.spec, record.spec))])
        message = f"{record.name}: {table.upstream} is captured again by itself: {table.error}"
        fields = {"source": record.name, "table": table.upstream}
        self._progress(Event(message, "table_resnapshotted", "warning", **fields))

    def _note_refused(self, record: SourceRecord, table: TableRecord, why: Finding) -> None:
        hint = f"Penstock captures it again as soon as that is possible. Now: {why.why}. {why.hint}".rstrip()
        if table.hint == hint:
            return
        self._catalog.set_table(
            *(record.name, table.upstream, TableState.FAILED), error=table.error or "", hint=hint, code=table.code
        )
        message = f"{record.name}: {table.upstream} cannot be captured again yet: {why.why}"
        fields = {"source": record.name, "table": table.upstream}
        self._progress(Event(message, "table_not_captured", "warning", **fields))


def _find(record: SourceRecord, tables: Sequence[TableName]) -> _Found:
    return spec_of(record).find_changed_tables(instance_of(record), tables)
