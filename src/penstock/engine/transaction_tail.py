"""Tail: whole transactions as they commit, without Spark.

::

    log.reader() ── wait ── transactions(after, durable] ──▶ the iterator
         ▲
    a lease, renewed by a separate thread: the consumer may take any time to process a transaction

The logs of several shards are read in turns. All transactions before an error of a table are delivered; then the error
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

__all__ = ["VERSION", "Tailed", "follow", "subscribe", "tail", "transaction_json"]

_LEASE_SECONDS, _RENEW_SECONDS, _POLL_SECONDS = 60.0, 15.0, 0.1
_NUMBERS = itertools.count(1)
_NAMED_STARTS = ("earliest", "latest")
_GAP_HINT = "Read the live table for its current rows. The tail continues from where the new history begins."


def tail(
    catalog: Catalog,
    source: str,
    tables: Sequence[str],
    start: str | Lsn,
    stop: Callable[[], bool],
    failed: Callable[[TableError], None] | None = None,
) -> Generator[Transaction, None, None]:
    """Validate the arguments, and tail the log of a source, or the logs of all its shards."""
    return follow(_selected(catalog, source, tables, start), stop, None if tables else failed)


def subscribe(
    catalog: Catalog, source: str, table: str | None, stop: Callable[[], bool]
) -> Generator[Transaction | TableError, None, None]:
    """Validate the arguments, and yield the transactions of a source, or of one of its tables, from now on.

    An error of a table ends the generator if it is the table, or the last one of the source; otherwise it is yielded.
    """
    return _followed(_selected(catalog, source, [table] if table else (), "latest"), stop, skip=table is None)


def _selected(catalog: Catalog, source: str, tables: Sequence[str], start: str | Lsn) -> list[Tailed]:
    records = named_sources(catalog, source)
    if len(records) > 1 and start not in _NAMED_STARTS:
        message = f"start position {start} is ambiguous: source {source} is sharded"
        raise UsageError(message, f"Start at earliest or latest, or name a shard: {records[0].name}")
    return [_tailed(catalog, record, tables, start) for record in records]


def _tailed(catalog: Catalog, source: SourceRecord, tables: Sequence[str], start: str | Lsn) -> Tailed:
    records = [named_table(catalog, source.name, text) for text in tables]
    chosen, log = frozenset(record.upstream for record in records), catalog.log(source.name)
    with closing(log.reader()) as reader:
        _refuse_uncaptured(reader, records)
        log.check_readable(chosen or reader.tables())
        return Tailed(log, chosen, _position(reader, start, chosen), source.shard)


@dataclass(frozen=True)
class Tailed:
    """A log to tail, the selected tables (empty: all), and the position after which to begin."""

    log: ChangeLog
    chosen: frozenset[TableName]
    after: Lsn
    shard: str | None = None


def follow(
    tailed: Sequence[Tailed], stop: Callable[[], bool], failed: Callable[[TableError], None] | None = None
) -> Generator[Transaction, None, None]:
    """Yield the transactions of logs until `stop` returns True: each log in commit order, several in arrival order.

    Raise the first error of a table; if `failed` is given, call it with each error, and raise that of the last table.
    """
    with closing(_followed(tailed, stop, skip=failed is not None)) as found:
        for each in found:
            if not isinstance(each, TableError):
                yield each
            elif failed is not None:
                failed(each)


def _followed(
    tailed: Sequence[Tailed], stop: Callable[[], bool], *, skip: bool
) -> Generator[Transaction | TableError, None, None]:
    """Yield transactions; with `skip`, also each error of a table that is left out from there on."""
    with ExitStack() as opened:
        logs = [opened.enter_context(_opened(each)) for each in tailed]
        before = [error for log in logs for error in log.ended()]
        if skip or _is_over(logs):
            yield from _skipped(before, logs, skip)
        while not stop():
            for log in logs:
                for transaction in log.more(_POLL_SECONDS / len(logs)):
                    yield transaction
                    log.lease.at = transaction.lsn
                    if stop():
                        return
                yield from _skipped(log.ended(), logs, skip)


def _skipped(errors: list[TableError], logs: Sequence[_Followed], skip: bool) -> Iterator[TableError]:
    """Yield the errors of tables; raise the first if tables are not skipped, or the last if no table is left."""
    if errors and not skip:
        raise errors[0]
    over = _is_over(logs)
    for number, error in enumerate(errors, 1):
        if over and number == len(errors):
            raise error
        yield error


def _is_over(logs: Sequence[_Followed]) -> bool:
    return all(log.is_over for log in logs)


class _Followed:
    """One log that is being tailed, and its current position."""

    def __init__(self, tailed: Tailed, reader: ChangeLogReader, lease: _Lease) -> None:
        self.lease = lease
        self.is_over = False
        """Whether all tables of the log are excluded."""
        self._tailed = tailed
        self._reader = reader
        self._after = tailed.after
        self._ended: list[TableError] = []
        self._left_out: dict[TableName, int] = {}
        """Excluded tables, and the generation up to which they are excluded."""
        logged = reader.tables()
        self._known = _generations(logged)
        """Tables that are or were included, and their generation."""
        if not tailed.chosen:
            self._leave_out(logged, logged, tailed.after)
            self.is_over = bool(logged) and len(self._left_out) == len(logged)

    def more(self, seconds: float) -> Iterator[Transaction]:
        """Yield transactions, waiting up to `seconds` for new ones, up to where a table begins or ends; see `ended`."""
        durable = self._reader.wait(self._after, seconds).durable
        logged = self._reader.tables()
        if self._tailed.chosen:
            names, begins = set(self._tailed.chosen), set[Lsn]()
        else:
            names, begins = self._followed(logged)
        ends = {error.lsn - 1 for name in names if name in logged and (error := logged[name].error) is not None}
        upto = Lsn(max(self._after, min([durable, *ends, *begins])))
        try:
            upto = yield from self._transactions(names, upto)
        except HistoryExpiredError:
            if self._tailed.chosen or _generations(self._reader.tables()) == _generations(logged):
                raise
            return  # a table was captured again just now: the next call sees its new generation
        self.lease.at = self._after = upto
        self._leave_out(logged, names, min(durable, Lsn(upto + 1)))
        self.is_over = bool(logged) and not begins and names <= self._left_out.keys()

    def _transactions(self, names: Collection[TableName], upto: Lsn) -> Generator[Transaction, None, Lsn]:
        """Yield transactions, and return where they end: before an error that only reading finds (a rejected message).

        The table with the error is excluded.
        """
        found: TableError | None = None
        while True:
            try:
                for transaction in transactions(self._reader, names, self._after, upto):
                    yield replace(transaction, shard=self._tailed.shard)
                    self._after = transaction.lsn
                break
            except TableError as error:
                found, upto = error, Lsn(error.lsn - 1)
        if found is not None:
            name = TableName.parse(found.table)
            self._left_out[name] = self._reader.tables()[name].generation
            self._note(found)
        return upto

    def ended(self) -> list[TableError]:
        """Return the errors of tables that were excluded since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _followed(self, logged: Mapping[TableName, LoggedTable]) -> tuple[set[TableName], set[Lsn]]:
        """Return the tables to include from the current position on, and the positions where other tables begin."""
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
        """Record an error if changes of a table are skipped: it was included, and its new history begins later."""
        before = self._known.pop(name, None)
        if before is not None and self._left_out.get(name) != before:
            message = f"{name} was captured again: changes after {self._after} and up to {table.valid} are skipped"
            self._note(TableError(str(name), self._after + 1, message, _GAP_HINT))

    def _leave_out(self, logged: Mapping[TableName, LoggedTable], names: Collection[TableName], upto: Lsn) -> None:
        """Exclude the tables that have failed at or before a position."""
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
def _opened(tailed: Tailed) -> Iterator[_Followed]:
    with closing(tailed.log.reader()) as reader, _lease(tailed.log, tailed.after) as lease:
        yield _Followed(tailed, reader, lease)


def _refuse_uncaptured(reader: ChangeLogReader, tables: list[TableRecord]) -> None:
    """Raise `DefiniteError` for a table that failed before its first change was logged: it will never have any."""
    logged = reader.tables()
    for record in tables:
        if record.state is TableState.FAILED and record.upstream not in logged:
            message = f"{record.upstream} is not captured: {record.error}"
            raise DefiniteError(message, record.hint or "Run `penstock status` to see its state.")


def _position(reader: ChangeLogReader, start: str | Lsn, chosen: Collection[TableName]) -> Lsn:
    """Return the start position; ``earliest`` is the first from which the history of all tables is complete."""
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
        message = f"invalid start position {start!r}"
        raise UsageError(message, "Use earliest, latest, or an LSN like 16/B374D848.") from error


class _Lease:
    """The lease of one tail on the history after its position."""

    def __init__(self, log: ChangeLog, at: Lsn) -> None:
        self.at = at
        self._log = log
        self._name = f"tail-{os.getpid()}-{next(_NUMBERS)}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=self._name, daemon=True)

    def take(self) -> None:
        """Take the lease and start renewing it; raise `HistoryExpiredError` if that history was removed."""
        with closing(self._log.reader()) as reader:
            reader.set_lease(self._name, self.at, _LEASE_SECONDS)
        self._thread.start()

    def release(self) -> None:
        """Release the lease."""
        self._over.set()
        self._thread.join()
        with closing(self._log.reader()) as reader:
            reader.set_lease(self._name, None)

    def _renew(self) -> None:
        while not self._over.wait(_RENEW_SECONDS):
            with suppress(Exception), closing(self._log.reader()) as reader:  # the reader gets the log's error
                reader.set_lease(self._name, self.at, _LEASE_SECONDS)


@contextmanager
def _lease(log: ChangeLog, at: Lsn) -> Iterator[_Lease]:
    lease = _Lease(log, at)
    lease.take()
    try:
        yield lease
    finally:
        lease.release()


VERSION = 1
"""The version of the JSON format: it changes when a field changes its meaning or is removed."""


def transaction_json(source: str, transaction: Transaction) -> str:
    """Return a transaction as one line of JSON, without the newline."""
    fields = {
        "version": VERSION,
        "source": source,
        "shard": transaction.shard,
        "lsn": str(transaction.lsn),
        "xid": transaction.xid,
        "committed_at": transaction.committed_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    tables = ",".join(f"{_text(name)}:[{','.join(_changes(table))}]" for name, table in transaction.tables.items())
    return f'{_text(fields)[:-1]},"tables":{{{tables}}}}}'


def _changes(table: pa.Table) -> Iterator[str]:
    before, after = (_rows(table.column(name)) for name in ("before", "after"))
    kept = (table.column(name).to_pylist() for name in ("_op", "_ordinal", "_unchanged"))
    for op, ordinal, unchanged, old, new in zip(*kept, before, after, strict=True):
        fields = _text({"op": op, "ordinal": ordinal, "unchanged": unchanged or []})
        yield f'{fields[:-1]},"before":{old or "null"},"after":{new or "null"}}}'


def _rows(rows: pa.ChunkedArray) -> list[str | None]:
    return [text for chunk in rows.chunks for text in json_rows(chunk).to_pylist()]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
