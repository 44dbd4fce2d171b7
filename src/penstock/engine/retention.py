"""What the base tables still need of a log.

A table at a position T is read as ``base@L ⊕ log (L, T]``. Whatever `valid` is, every table that can be read there must
have a base that stands exactly there, or older history would have to be read, which is gone. So the mark of the tables
(the pin of the reader `TABLES`) is set to a position F at which each of them has a base:

- its newest base at or before F stands at F; or
- nothing happened to it between that base and F: then that base *is* the table at F, and the catalog notes it.

F is sought from the oldest position that `retain history` asks for, downwards. All tables that changed are applied to
the same position in one round, so it is found in a step or two. Nothing is released while a table waits for its first
copy. A table that failed at E can be read before E, and counts for as long as F lies before that; it holds nothing back
for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.interface import ChangeLogReader
from penstock.engine.lifecycle import TABLES
from penstock.engine.records import instance_of
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn

__all__ = ["oldest_base", "release_history"]

_WAITING = (TableState.PENDING, TableState.RETRYING)


def release_history(catalog: Catalog, source: str) -> Lsn | None:
    """Move the mark of a source's tables as far as they and `retain history` allow; return where it stands now."""
    record = catalog.source(source)
    tables = catalog.tables(source)
    if record is None or any(table.state in _WAITING for table in tables):
        return None
    with closing(catalog.log(source).reader()) as log:
        catalog.bases.forget_older(source, log.frontiers().valid)
        oldest = _oldest_wanted(log, datetime.now(UTC) - instance_of(record).retained())
        if oldest is None:
            return None
        mark = _common_base(catalog, log, [*_readable(catalog, tables, log)], oldest)
        if mark is not None:
            log.pin(TABLES, mark)
        return mark


def oldest_base(catalog: Catalog, source: str, upto: Lsn) -> Lsn:
    """Return the position after which the log is needed to show all tables that can be read at `upto`."""
    ended = _ended(catalog, source, upto)
    bases = catalog.bases.positions(source, upto)
    return min((position for local, position in bases.items() if local not in ended), default=upto)


def _ended(catalog: Catalog, source: str, upto: Lsn) -> set[str]:
    """Return the tables that cannot be read at a position: nobody who looks again and again holds them for ever."""
    failed = [table for table in catalog.tables(source) if table.state is TableState.FAILED]
    if not failed:
        return set()
    with closing(catalog.log(source).reader()) as log:
        errors = {name: table.error for name, table in log.tables().items() if table.error is not None}
    return {table.local for table in failed if table.upstream not in errors or errors[table.upstream].lsn <= upto}


def _oldest_wanted(log: ChangeLogReader, since: datetime) -> Lsn | None:
    try:
        return log.position_at(since)
    except HistoryExpiredError:  # all of it is younger
        return None


def _readable(catalog: Catalog, tables: list[TableRecord], log: ChangeLogReader) -> Iterator[tuple[TableRecord, Lsn]]:
    """Yield the tables that can be read somewhere, each with the position before which it can."""
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
    """Return the last position up to `upto` at which each of these tables has a base; None where there is none."""
    while True:
        stands = [_stands_at(catalog, log, table, upto) for table, end in tables if upto < end]
        lowest = min((at for at in stands if at is not None), default=upto)
        if lowest >= upto:
            return upto
        if lowest <= log.frontiers().valid:
            return None
        upto = lowest


def _stands_at(catalog: Catalog, log: ChangeLogReader, table: TableRecord, upto: Lsn) -> Lsn | None:
    """Return where the newest base of a table up to `upto` stands, noting that it stands there also; None: no base."""
    base = catalog.bases.newest(table.source, table.local, upto)
    if base is None:
        return None
    if base.position < upto and not log.extent(table.upstream, base.position, upto).chunks:
        catalog.bases.note(table.source, table.local, BaseVersion(base.version, upto, base.schema, base.memory))
        return upto
    return base.position
