"""New tables: a source for all tables, or for schemas, captures the tables that are created upstream later.

::

    at the start, then every few seconds, in a thread per source:
      upstream   tables that the source covers, and whether each can be captured        `Source.find_new_tables`
    in the running home:
      capturable, unknown, on all shards   ─▶ catalog: adding            the same request as ADD TABLE
      cannot be captured                   ─▶ catalog: failed            with the reason and the hint of `check`
      failed, and can be captured now      ─▶ catalog: adding            a key was added after CREATE TABLE, say
      failed, never captured, and dropped  ─▶ catalog: removed

`reconcile` executes the requests, so a new table begins as exactly as one that a user adds. A table that a user dropped
from the source is one that the source excludes, and is not found again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, TableRequest
from penstock.engine.catalog_records import instance_of, spec_of
from penstock.engine.shards import reject_unlike_tables
from penstock.engine.table import Progress
from penstock.engine.table_names import free_name
from penstock.errors import DefiniteError
from penstock.event_log import Event
from penstock.model import TableName
from penstock.sources.findings import Finding, error
from penstock.sources.produced_table import ProducedTable

__all__ = ["SECONDS", "NewTables", "request_new_tables"]

SECONDS = 10.0
"""The shortest time between two queries of a source."""
_SHARE = 20
"""Between two queries, this many times the duration of a query passes: a large catalog is not queried all the time."""
_THREADS = 4

_Found = Mapping[TableName, ProducedTable | Finding] | None


@dataclass(frozen=True)
class _Search:
    """A running query of a source, and its shards if it has any."""

    records: Sequence[SourceRecord]
    began: float
    found: Future[list[_Found]]


class NewTables:
    """Finds new tables of the running sources; a server that does not answer delays only its own source."""

    def __init__(self, catalog: Catalog, progress: Progress) -> None:
        self._catalog = catalog
        self._progress = progress
        self._pool = ThreadPoolExecutor(_THREADS, "penstock-new-tables")
        self._searches: dict[str, _Search] = {}
        self._due: dict[str, float] = {}

    def look(self, running: Sequence[str]) -> None:
        """Record requests for the tables that were found since the last call, and start the queries that are due.

        Raise the error of a query; the next one is due as usual.
        """
        for name, records in self._sources(running).items():
            search = self._searches.get(name)
            if search is not None and search.found.done():
                del self._searches[name]
                self._due[name] = time.monotonic() + max(SECONDS, _SHARE * (time.monotonic() - search.began))
                request_new_tables(self._catalog, search.records, search.found.result(), self._progress)
            elif search is None and time.monotonic() >= self._due.get(name, 0.0):
                found = self._pool.submit(_find, records)
                self._searches[name] = _Search(records, time.monotonic(), found)

    def _sources(self, running: Sequence[str]) -> dict[str, list[SourceRecord]]:
        """Return the running sources, with all their shards."""
        found: dict[str, list[SourceRecord]] = {}
        for record in self._catalog.sources():
            found.setdefault(record.known_as, []).append(record)
        return {name: records for name, records in found.items() if all(_runs(each, running) for each in records)}

    def close(self) -> None:
        """Start no more queries."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _runs(record: SourceRecord, running: Sequence[str]) -> bool:
    return record.name in running and record.state is SourceState.READY


def _find(records: Sequence[SourceRecord]) -> list[_Found]:
    return [spec_of(record).find_new_tables(instance_of(record)) for record in records]


def request_new_tables(
    catalog: Catalog, records: Sequence[SourceRecord], found: Sequence[_Found], progress: Progress
) -> None:
    """Record what was found on each shard of a source, or on its only one; nothing if it does not look for tables."""
    covered = [each for each in found if each is not None]
    if len(covered) < len(records):
        return
    known = [{table.upstream: table for table in catalog.tables(record.name)} for record in records]
    for name in (name for name in covered[0] if all(name in each for each in covered)):
        states = [each[name].state if name in each else None for each in known]
        if all(state in (None, TableState.FAILED) for state in states):
            _request(catalog, records, known, name, [each[name] for each in covered], progress)
    for record, tables, there in zip(records, known, covered, strict=True):
        _forget_dropped(catalog, record, tables, there.keys(), progress)


def _request(
    catalog: Catalog,
    records: Sequence[SourceRecord],
    known: Sequence[dict[TableName, TableRecord]],
    name: TableName,
    found: Sequence[ProducedTable | Finding],
    progress: Progress,
) -> None:
    refused = _refused(name, records, found)
    failed = [each.get(name) for each in known]
    if refused is not None and all(each is not None and each.error == refused.why for each in failed):
        return
    taken = {table.local.lower() for each in known for table in each.values()}
    local = next((each.local for each in failed if each is not None), None) or free_name(name, taken)
    result = (TableState.ADDING,) if refused is None else (TableState.FAILED, refused.why, refused.hint)
    requested = [TableRecord(record.name, name, local, *result) for record in records]
    catalog.add_requests([TableRequest(table, (r.spec, r.spec)) for table, r in zip(requested, records, strict=True)])
    for each, table in zip(known, requested, strict=True):
        each[name] = table
    source = records[0].known_as
    if refused is None:
        message = f"{source}: new table {name} is captured as {source}.{local}"
        progress(Event(message, "table_found", source=source, table=name))
    else:
        message = f"{source}: new table {name} cannot be captured: {refused.why}"
        progress(Event(message, "table_not_captured", "warning", source=source, table=name))


def _refused(
    name: TableName, records: Sequence[SourceRecord], found: Sequence[ProducedTable | Finding]
) -> Finding | None:
    """Return why a table cannot be captured: the reason on the first shard that has one, or that shards differ."""
    refused = next((each for each in found if isinstance(each, Finding)), None)
    if refused is not None:
        return refused
    tables = [table.table_schema() for table in found if isinstance(table, ProducedTable)]
    try:
        reject_unlike_tables(name, {r.shard or r.name: table for r, table in zip(records, tables, strict=True)})
    except DefiniteError as unlike:
        return error(str(name), unlike.message, unlike.hint)
    return None


def _forget_dropped(
    catalog: Catalog,
    record: SourceRecord,
    known: Mapping[TableName, TableRecord],
    there: Collection[TableName],
    progress: Progress,
) -> None:
    """Remove the tables that could never be captured, and that upstream no longer has or publishes."""
    captured = {table.name for table in instance_of(record).produced()}
    for name, table in known.items():
        if table.state is TableState.FAILED and name not in captured and name not in there:
            catalog.complete_request(table, None)
            message = f"{record.name}: {name}, which could not be captured, no longer exists upstream"
            progress(Event(message, "table_forgotten", source=record.name, table=name))
