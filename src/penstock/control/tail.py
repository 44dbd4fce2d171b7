"""Following a log: whole transactions as they commit, without Spark.

::

    log.reader() ── wait ── transactions(after, durable] ──▶ whoever iterates
         ▲
    a lease, renewed from a thread of its own: whoever iterates may take as long as they like over a transaction

Several logs, those of shards, are followed in turns. Everything before an error of a table is given; then comes the
error. A table that had failed before the beginning is left out, unless it was asked for by name: then there is nothing
to give but its error.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog, ChangeLogReader
from penstock.changelog.transactions import Transaction, transactions
from penstock.control.named import named_sources, named_table
from penstock.errors import DefiniteError, PenstockError, TableError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Tailed", "follow", "tail"]

_LEASE_SECONDS, _RENEW_SECONDS, _LOOK_SECONDS = 60.0, 15.0, 0.1
_NUMBERS = itertools.count(1)
_ANYWHERE = ("earliest", "latest")


def tail(
    catalog: Catalog, source: str, tables: Sequence[str], start: str | Lsn, stop: Callable[[], bool]
) -> Generator[Transaction, None, None]:
    """Check what was asked for, and follow the log of a source; of shards, those of all of them."""
    records = named_sources(catalog, source)
    if len(records) > 1 and start not in _ANYWHERE:
        message = f"source {source} is made of shards, and {start} is a position in one of them"
        raise UsageError(message, f"Begin at earliest or latest, or name a shard: {records[0].name}")
    return follow([_tailed(catalog, record, tables, start) for record in records], stop)


def _tailed(catalog: Catalog, source: SourceRecord, tables: Sequence[str], start: str | Lsn) -> Tailed:
    records = [named_table(catalog, source.name, text) for text in tables]
    chosen, log = frozenset(record.upstream for record in records), catalog.log(source.name)
    with closing(log.reader()) as reader:
        _refuse_uncaptured(reader, records)
        return Tailed(log, chosen, _position(reader, start, chosen), source.shard)


@dataclass(frozen=True)
class Tailed:
    """A log, the tables that are followed in it (none: all), and after which position."""

    log: ChangeLog
    chosen: frozenset[TableName]
    after: Lsn
    shard: str | None = None


def follow(tailed: Sequence[Tailed], stop: Callable[[], bool]) -> Generator[Transaction, None, None]:
    """Yield the transactions of logs until told to stop: those of one log in commit order, of several as they come."""
    with ExitStack() as opened:
        logs = [opened.enter_context(_following(each)) for each in tailed]
        while not stop():
            for log in logs:
                for transaction in log.more(_LOOK_SECONDS / len(logs)):
                    yield transaction
                    log.lease.at = transaction.lsn
                    if stop():
                        return


class _Followed:
    """One log that is followed, and how far."""

    def __init__(self, tailed: Tailed, reader: ChangeLogReader, lease: _Lease) -> None:
        self.lease = lease
        self._tailed = tailed
        self._reader = reader
        self._after = tailed.after
        self._left_out = set() if tailed.chosen else _failed_before(reader, tailed.after)

    def more(self, seconds: float) -> Iterator[Transaction]:
        """Yield what is there, or comes within so many seconds; then raise the error of a table, if it has come."""
        durable = self._reader.wait(self._after, seconds).durable
        logged = self._reader.tables()
        names = set(self._tailed.chosen or logged) - self._left_out
        error = _first_error([logged[name].error for name in names if name in logged])
        upto = durable if error is None else Lsn(min(durable, error.lsn - 1))
        for transaction in transactions(self._reader, names, self._after, upto):
            yield replace(transaction, shard=self._tailed.shard)
        if error is not None and durable >= error.lsn:
            raise error if self._tailed.shard is None else _on_shard(self._tailed.shard, error)
        self.lease.at = self._after = max(self._after, upto)


def _on_shard(shard: str, error: TableError) -> TableError:
    return TableError(error.table, error.lsn, f"on shard {shard}, {error.message}", error.remedy)


@contextmanager
def _following(tailed: Tailed) -> Iterator[_Followed]:
    with closing(tailed.log.reader()) as reader, _lease(tailed.log, tailed.after) as lease:
        yield _Followed(tailed, reader, lease)


def _refuse_uncaptured(reader: ChangeLogReader, tables: list[TableRecord]) -> None:
    """Refuse a table that failed before anything of it came into the log: nothing ever will."""
    logged = reader.tables()
    for record in tables:
        if record.state is TableState.FAILED and record.upstream not in logged:
            message = f"{record.upstream} is not captured: {record.error}"
            raise DefiniteError(message, record.remedy or "See what penstock status says of it.")


def _position(reader: ChangeLogReader, start: str | Lsn, chosen: Collection[TableName]) -> Lsn:
    """Return where to begin; the earliest position is that from which on all of the tables are whole."""
    frontiers = reader.frontiers()
    if start == "latest":
        return frontiers.durable
    if start == "earliest":
        logged = reader.tables()
        begun = [table.valid for name, table in logged.items() if not chosen or name in chosen]
        return max([frontiers.valid, *begun])
    if isinstance(start, Lsn):
        return start
    try:
        return Lsn.parse(start)
    except ValueError as error:
        message = f"{start!r} is not a position to start from"
        raise UsageError(message, "Name earliest, latest, or an LSN like 16/B374D848.") from error


def _failed_before(reader: ChangeLogReader, after: Lsn) -> set[TableName]:
    return {name for name, table in reader.tables().items() if table.error and table.error.lsn <= after}


def _first_error(errors: list[TableError | None]) -> TableError | None:
    return min((error for error in errors if error is not None), key=lambda error: error.lsn, default=None)


class _Lease:
    """The pin of one tail."""

    def __init__(self, log: ChangeLog, at: Lsn) -> None:
        self.at = at
        self._log = log
        self._name = f"tail-{os.getpid()}-{next(_NUMBERS)}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=self._name, daemon=True)

    def take(self) -> None:
        """Pin the position, and go on doing so; `HistoryGone` where it is too early."""
        with closing(self._log.reader()) as reader:
            reader.pin(self._name, self.at, _LEASE_SECONDS)
        self._thread.start()

    def give_back(self) -> None:
        """Take the pin away."""
        self._over.set()
        self._thread.join()
        with closing(self._log.reader()) as reader:
            reader.pin(self._name, None)

    def _renew(self) -> None:
        while not self._over.wait(_RENEW_SECONDS):
            try:
                with closing(self._log.reader()) as reader:
                    reader.pin(self._name, self.at, _LEASE_SECONDS)
            except PenstockError:  # whoever reads will be told what is wrong with the log
                continue


@contextmanager
def _lease(log: ChangeLog, at: Lsn) -> Iterator[_Lease]:
    lease = _Lease(log, at)
    lease.take()
    try:
        yield lease
    finally:
        lease.give_back()
