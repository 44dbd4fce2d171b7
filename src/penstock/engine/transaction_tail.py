"""Tail: whole transactions as they commit, without Spark.

::

    log.reader() ── wait ── transactions(after, durable] ──▶ the iterator
         ▲
    a lease, renewed by a thread of its own: the consumer may take as long as it likes over a transaction

Several logs, those of shards, are read in turns. Everything before an error of a table is delivered; then the error
ends the tail if the table was named, or if no `failed` function was given. Otherwise the error is reported once, and
the tail continues without the table, as long as tables are left::

    (after ── all tables ── error of a table] reported: the table is left out (── the others ── …

Tables that had failed before the start are left out likewise. A table that is captured again, or added, while the tail
runs is included from where its history begins; if changes are skipped by that, this is reported as its error.

`transaction_json` is a transaction as one line of JSON; values are written as in `penstock.changelog.json_rows`.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog, ChangeLogReader, LoggedTable
from penstock.changelog.json_rows import json_rows
from penstock.changelog.transactions import Transaction, transactions
from penstock.engine.table_names import named_sources, named_table
from penstock.errors import DefiniteError, HistoryExpiredError, TableError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["VERSION", "Tailed", "follow", "tail", "transaction_json"]

_LEASE_SECONDS, _RENEW_SECONDS, _LOOK_SECONDS = 60.0, 15.0, 0.1
_NUMBERS = itertools.count(1)
_ANYWHERE = ("earliest", "latest")
_GONE = "Read its live table for what it is now; it is followed again from where its history begins."


def tail(
    catalog: Catalog,
    source: str,
    tables: Sequence[str],
    start: str | Lsn,
    stop: Callable[[], bool],
    failed: Callable[[TableError], None] | None = None,
) -> Generator[Transaction, None, None]:
    """Check what was asked for, and follow the log of a source; of shards, those of all of them."""
    records = named_sources(catalog, source)
    if len(records) > 1 and start not in _ANYWHERE:
        message = f"source {source} is made of shards, and {start} is a position in one of them"
        raise UsageError(message, f"Begin at earliest or latest, or name a shard: {records[0].name}")
    tailed = [_tailed(catalog, record, tables, start) for record in records]
    return follow(tailed, stop, None if tables else failed)


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


def follow(
    tailed: Sequence[Tailed], stop: Callable[[], bool], failed: Callable[[TableError], None] | None = None
) -> Generator[Transaction, None, None]:
    """Yield the transactions of logs until told to stop: those of one log in commit order, of several as they come.

    The first error of a table is raised; where `failed` is given it is told that, and the last table's is raised.
    """
    with ExitStack() as opened:
        logs = [opened.enter_context(_following(each)) for each in tailed]
        before = [error for log in logs for error in log.ended()]
        if failed is not None or _is_over(logs):
            _tell(before, logs, failed)
        while not stop():
            for log in logs:
                for transaction in log.more(_LOOK_SECONDS / len(logs)):
                    yield transaction
                    log.lease.at = transaction.lsn
                    if stop():
                        return
                _tell(log.ended(), logs, failed)


def _tell(errors: list[TableError], logs: Sequence[_Followed], failed: Callable[[TableError], None] | None) -> None:
    if errors and failed is None:
        raise errors[0]
    over = _is_over(logs)
    for number, error in enumerate(errors, 1):
        if over and number == len(errors):
            raise error
        assert failed is not None
        failed(error)


def _is_over(logs: Sequence[_Followed]) -> bool:
    return all(log.is_over for log in logs)


class _Followed:
    """One log that is followed, and how far."""

    def __init__(self, tailed: Tailed, reader: ChangeLogReader, lease: _Lease) -> None:
        self.lease = lease
        self.is_over = False
        """Whether all tables that there are were left out."""
        self._tailed = tailed
        self._reader = reader
        self._after = tailed.after
        self._ended: list[TableError] = []
        self._left_out: dict[TableName, int] = {}
        """Tables that are not followed any more, and the generation of which that is true."""
        logged = reader.tables()
        self._known = _generations(logged)
        """Tables that are followed, or were, and their generation."""
        if not tailed.chosen:
            self._leave_out(logged, logged, tailed.after)
            self.is_over = bool(logged) and len(self._left_out) == len(logged)

    def more(self, seconds: float) -> Iterator[Transaction]:
        """Yield what is there, or comes within so many seconds, up to where a table begins or ends; see `ended`."""
        durable = self._reader.wait(self._after, seconds).durable
        logged = self._reader.tables()
        if self._tailed.chosen:
            names, begins = set(self._tailed.chosen), set[Lsn]()
        else:
            names, begins = self._followed(logged)
        ends = {error.lsn - 1 for name in names if name in logged and (error := logged[name].error) is not None}
        upto = Lsn(max(self._after, min([durable, *ends, *begins])))
        try:
            for transaction in transactions(self._reader, names, self._after, upto):
                yield replace(transaction, shard=self._tailed.shard)
                self._after = transaction.lsn
        except HistoryExpiredError:
            if self._tailed.chosen or _generations(self._reader.tables()) == _generations(logged):
                raise
            return  # a table was captured anew just now: the next look knows it
        self.lease.at = self._after = upto
        self._leave_out(logged, names, min(durable, Lsn(upto + 1)))
        self.is_over = bool(logged) and not begins and names <= self._left_out.keys()

    def ended(self) -> list[TableError]:
        """Return the errors of tables that were left out since this was asked."""
        ended, self._ended = self._ended, []
        return ended

    def _followed(self, logged: Mapping[TableName, LoggedTable]) -> tuple[set[TableName], set[Lsn]]:
        """Return the tables that are followed from here on, and where others begin that will be."""
        names, begins = set[TableName](), set[Lsn]()
        for name, table in logged.items():
            if self._left_out.get(name, -1) >= table.generation:
                continue
            if table.valid > self._after and self._known.get(name) != table.generation:
                begins.add(table.valid)
                self._note_gap(name, table)
            else:
                self._known[name] = table.generation
                names.add(name)
        return names, begins

    def _note_gap(self, name: TableName, table: LoggedTable) -> None:
        """Note that changes of a table are skipped: it was followed up to here, and has begun anew further on."""
        before = self._known.pop(name, None)
        if before is not None and self._left_out.get(name) != before:
            message = f"{name} was captured anew: its changes after {self._after} and up to {table.valid} are gone"
            self._note(TableError(str(name), self._after + 1, message, _GONE))

    def _leave_out(self, logged: Mapping[TableName, LoggedTable], names: Collection[TableName], upto: Lsn) -> None:
        """Leave those tables out that have ended by a position."""
        for name in sorted(name for name in names if name in logged):
            error = logged[name].error
            if error is not None and error.lsn <= upto:
                self._left_out[name] = logged[name].generation
                self._note(error)

    def _note(self, error: TableError) -> None:
        shard = self._tailed.shard
        self._ended.append(error if shard is None else _on_shard(shard, error))


def _generations(logged: Mapping[TableName, LoggedTable]) -> dict[TableName, int]:
    return {name: table.generation for name, table in logged.items()}


def _on_shard(shard: str, error: TableError) -> TableError:
    return TableError(error.table, error.lsn, f"on shard {shard}, {error.message}", error.hint)


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
            raise DefiniteError(message, record.hint or "See what penstock status says of it.")


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


class _Lease:
    """The pin of one tail."""

    def __init__(self, log: ChangeLog, at: Lsn) -> None:
        self.at = at
        self._log = log
        self._name = f"tail-{os.getpid()}-{next(_NUMBERS)}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=self._name, daemon=True)

    def take(self) -> None:
        """Pin the position, and go on doing so; `HistoryExpiredError` where it is too early."""
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
            with suppress(Exception), closing(self._log.reader()) as reader:  # whoever reads will be told; this goes on
                reader.pin(self._name, self.at, _LEASE_SECONDS)


@contextmanager
def _lease(log: ChangeLog, at: Lsn) -> Iterator[_Lease]:
    lease = _Lease(log, at)
    lease.take()
    try:
        yield lease
    finally:
        lease.give_back()


VERSION = 1
"""Of this shape: it changes when a field changes its meaning or goes."""


def transaction_json(source: str, transaction: Transaction) -> str:
    """Return the line, without its end."""
    told = {
        "version": VERSION,
        "source": source,
        "shard": transaction.shard,
        "lsn": str(transaction.lsn),
        "xid": transaction.xid,
        "committed_at": transaction.committed_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    tables = ",".join(f"{_text(name)}:[{','.join(_changes(table))}]" for name, table in transaction.tables.items())
    return f'{_text(told)[:-1]},"tables":{{{tables}}}}}'


def _changes(table: pa.Table) -> Iterator[str]:
    before, after = (_rows(table.column(name)) for name in ("before", "after"))
    kept = (table.column(name).to_pylist() for name in ("_op", "_ordinal", "_unchanged"))
    for op, ordinal, unchanged, old, new in zip(*kept, before, after, strict=True):
        told = _text({"op": op, "ordinal": ordinal, "unchanged": unchanged or []})
        yield f'{told[:-1]},"before":{old or "null"},"after":{new or "null"}}}'


def _rows(rows: pa.ChunkedArray) -> list[str | None]:
    return [text for chunk in rows.chunks for text in json_rows(chunk).to_pylist()]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
