"""Retention: release the history of a log that neither the base tables nor `retain history` need.

A table at a position T is read as ``base@L ⊕ log (L, T]``. Every table that is readable at `valid` must have a base at
exactly that position; otherwise reading it would need older history, which is removed. So the base tables, as the
registered reader `TABLES`, retain the log after a position F at which each of them has a base:

- the position of its newest base at or before F is F; or
- the table has no changes between that base and F: then that base *is* the table at F, and the catalog records that.

The search for F starts at the oldest position that `retain history` requires, and goes down. All tables with changes
are applied to the same position in one round, so the search takes a step or two. Nothing is released while a table
waits for its initial snapshot. A table that failed at E is readable before E, and counts only while F is before E; then
it no longer holds history back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.interface import ChangeLogReader
from penstock.engine.catalog_records import instance_of
from penstock.engine.lifecycle import TABLES
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn

__all__ = ["oldest_base", "release_history"]

_WAITING = (TableState.PENDING, TableState.RETRYING)


def release_history(catalog: Catalog, source: str) -> Lsn | None:
    """Advance the position of the reader `TABLES` as far as possible; return it, or None if it cannot move."""
    record = catalog.source(source)
    tables = catalog.tables(source)
    if record is None or any(table.state in _WAITING for table in tables):
        return None
    with closing(catalog.log(source).reader()) as log:
        catalog.bases.forget_older(source, log.frontiers().valid)
        oldest = _oldest_wanted(log, datetime.now(UTC) - instance_of(record).retained())
        if oldest is None:
            return None
        position = _common_base(catalog, log, [*_readable(catalog, tables, log)], oldest)
        if position is not None:
            log.set_lease(TABLES, position)
        return position


def oldest_base(catalog: Catalog, source: str, upto: Lsn) -> Lsn:
    """Return the position after which the log is needed to read all tables that are readable at `upto`."""
    ended = _ended(catalog, source, upto)
    bases = catalog.bases.positions(source, upto)
    return min((position for local, position in bases.items() if local not in ended), default=upto)


def _ended(catalog: Catalog, source: str, upto: Lsn) -> set[str]:
    """Return the tables that are not readable at a position, so that repeated views do not retain them forever."""
    failed = [table for table in catalog.tables(source) if table.state is TableState.FAILED]
    if not failed:
        return set()
    with closing(catalog.log(source).reader()) as log:
        errors = {name: table.error for name, table in log.tables().items() if table.error is not None}
    return {table.local for table in failed if table.upstream not in errors or errors[table.upstream].lsn <= upto}


def _oldest_wanted(log: ChangeLogReader, since: datetime) -> Lsn | None:
    try:
        return log.position_at(since)
    except HistoryExpiredError:  # the whole history is more recent
        return None


def _readable(catalog: Catalog, tables: list[TableRecord], log: ChangeLogReader) -> Iterator[tuple[TableRecord, Lsn]]:
    """Yield the tables that are readable at some position, each with the position before which it is."""
    logged = log.tables()
    for table in tables:
        known = logged.get(table.upstream)
        if table.state is TableState.LIVE:
            yield table, Lsn.LAST
        elif table.state is TableState.FAILED and known is not None and known.error is not None:
            base = catalog.bases.newest(table.source, table.local, Lsn(known.error.lsn - 1))
            if base is not None and base.position >= known.valid:
                yield table, Lsn(known.error.lsn)


def _common_base(
    catalog: Catalog, log: ChangeLogReader, tables: list[tuple[TableRecord, Lsn]], upto: Lsn
) -> Lsn | None:
    """Return the last position up to `upto` at which each of these tables has a base, or None."""
    while True:
        bases = [_base_position(catalog, log, table, upto) for table, end in tables if upto < end]
        lowest = min((at for at in bases if at is not None), default=upto)
        if lowest >= upto:
            return upto
        if lowest <= log.frontiers().valid:
            return None
        upto = lowest


def _base_position(catalog: Catalog, log: ChangeLogReader, table: TableRecord, upto: Lsn) -> Lsn | None:
    """Return the position of a table's newest base up to `upto`, or None; record it at `upto` if nothing changed."""
    base = catalog.bases.newest(table.source, table.local, upto)
    if base is None:
        return None
    if base.position < upto and not log.extent(table.upstream, base.position, upto).chunks:
        catalog.bases.note(table.source, table.local, BaseVersion(base.version, upto, base.schema, base.memory))
        return upto
    return base.position
