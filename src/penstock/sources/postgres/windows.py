"""Windows: rows that are read beside the stream, between two watermarks in it.

::

    begin    note a position A, and wait until every transaction that was running then has ended
    each     write LOW ─▶ read rows at some moment ─▶ write HIGH at position B

A window tells of each of its rows what it was at some moment between A and B. Laying over it what the log holds of
(A, B] makes of it what it is at B, exactly: see "Four ways to put rows right" in the design. `begin` waits because a
commit is in the WAL before it is visible. What was running at A may have its commit before A, and yet not be seen by
a read after A; of what began after A, neither holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.durations import parse_duration
from penstock.errors import DefiniteError, TableError, UsageError
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.copy import copy_rows, from_table, selected, table_bytes
from penstock.sources.postgres.keys import Key, key_type
from penstock.sources.postgres.old_transactions import next_transaction, wait_for_transactions_before
from penstock.sources.postgres.wal import written
from penstock.sources.postgres.watermark import Mark, Watermark, write_watermark

__all__ = ["Window", "Windows"]

_UNLIMITED = ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
_KEYS_AT_ONCE = 5_000


@dataclass(frozen=True)
class Window:
    """Rows that were read, and where the window ends in the stream."""

    rows: pa.Table
    high: Lsn
    upto: Key | None = None
    """Of a range: the last key that it may hold; None where there is none behind it."""


class Windows:
    """Reads rows of one table in windows, over one connection."""

    def __init__(self, config: PostgresInstanceConfig, table: CapturedTable, window: str, number: int = 0) -> None:
        """Continue with the windows after `number` of the copy or repair whose random id is `window`."""
        if not table.key:
            message = f"{table.name} has no key, so its rows cannot be read in windows"
            raise TableError(
                str(table.name), Lsn.ZERO, message, "Give it a primary key upstream, or use snapshot = 'parallel'."
            )
        self._config = config
        self._table = table
        self._window = window
        self._number = number
        self._schema = table.table_schema().columns.remove_metadata()
        self._connection = connect(config.connection, f"penstock window {table.name}"[:63])
        try:
            self._refuse_standby()
            self._key = key_type(self._connection, table)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def begin(self, tell: Callable[[str], None], stop: threading.Event) -> Lsn:
        """Return the position A, after which everything counts; wait for transactions that began before it."""
        position = written(self._connection)
        following = next_transaction(self._connection)
        wait_for_transactions_before(
            self._connection, following, parse_duration(self._config.snapshot_wait), tell, stop
        )
        return position

    def table_bytes(self) -> int:
        """Return how much the table takes upstream."""
        return table_bytes(self._connection, self._table.name)

    def range(self, after: Key | None, rows: int) -> Window:
        """Read about so many rows whose keys follow `after`, in the order that Postgres has of them."""
        with self._marked() as high, self._moment():
            upto = self._bound(after, rows)
            found = self._read(self._key.between(after, upto))
        return Window(found, high(), upto)

    def keyed(self, keys: Sequence[Key]) -> Window:
        """Read the rows that have these keys."""
        with self._marked() as high, self._moment():
            parts = [self._read(self._key.among(keys[i : i + _KEYS_AT_ONCE])) for i in _steps(keys)]
        return Window(pa.concat_tables([self._schema.empty_table(), *parts]), high())

    def key_values(self, keys: Sequence[Key]) -> pa.Table:
        """Return keys as values of their columns, as Postgres reads them."""
        columns = tuple(column for name in self._table.key for column in self._table.columns if column.name == name)
        table = self._table.model_copy(update={"columns": columns})
        listed = sql.SQL(", ").join(selected(column) for column in columns)
        parts: list[pa.RecordBatch] = []
        for i in _steps(keys):
            literals = sql.SQL(", ").join(map(self._key.literal, keys[i : i + _KEYS_AT_ONCE]))
            query = sql.SQL("SELECT {} FROM (VALUES {}) AS asked ({})").format(listed, literals, self._key.listed())
            parts += copy_rows(self._connection, table, query, Lsn.ZERO)
        return pa.Table.from_batches(parts, table.table_schema().columns.remove_metadata())

    def chosen(self, where: str) -> list[Key]:
        """Return the keys of the rows upstream for which a condition holds."""
        printed = sql.SQL(", ").join(sql.SQL("format('%s', {})").format(sql.Identifier(n)) for n in self._table.key)
        condition = sql.SQL(where.replace("{", "{{").replace("}", "}}")).format()
        query = sql.SQL("SELECT {} FROM {} WHERE ({})").format(printed, from_table(self._table), condition)
        try:
            with self._moment():
                return [tuple(row) for row in self._connection.execute(query.as_bytes(self._connection)).fetchall()]
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.errors.ReadOnlySqlTransaction) as error:
            said = " ".join(str(error).split())
            message = f"Postgres does not take this condition: {said}"
            raise UsageError(message, "Write what could stand behind WHERE, over the columns of the table.") from error

    # -- how --------------------------------------------------------------------------------------------------------

    def _refuse_standby(self) -> None:
        if self._ask("SELECT pg_is_in_recovery()") is True:
            message = "a standby takes no watermarks, so rows cannot be read in windows there"
            raise DefiniteError(message, "Name the primary in the connection; or use snapshot = 'parallel'.")

    def _ask(self, query: str) -> Any:
        row = self._connection.execute(query).fetchone()
        return row[0] if row else None

    @contextmanager
    def _marked(self) -> Iterator[Callable[[], Lsn]]:
        """Write LOW before and HIGH after; what is yielded tells where HIGH is, afterwards."""
        self._number += 1
        ends: list[Lsn] = []
        self._mark(Mark.LOW)
        yield lambda: ends[0]
        ends.append(self._mark(Mark.HIGH))

    def _mark(self, mark: Mark) -> Lsn:
        watermark = Watermark(self._config.identity, self._window, self._number, mark)
        return write_watermark(self._connection, self._config.watermarks, watermark)

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Show all queries within one moment, for as long as they take, and write nothing.

        The table is locked before that moment, as any query locks it: to a moment before an ALTER TABLE that rewrites
        it, for whose end a query would wait, it would look empty afterwards.
        """
        connection = self._connection
        for setting in _UNLIMITED:
            connection.execute(sql.SQL("SET {} = 0").format(sql.Identifier(setting)))
        connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(from_table(self._table)))
            yield
        except BaseException:
            if not connection.broken:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _bound(self, after: Key | None, rows: int) -> Key | None:
        """Return the key of the last of so many rows; None when there are fewer."""
        printed = sql.SQL(", ").join(sql.SQL("format('%s', {})").format(sql.Identifier(n)) for n in self._table.key)
        order = self._key.listed()
        inner = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} OFFSET {} LIMIT 1").format(
            order, from_table(self._table), self._where(self._key.between(after, None)), order, sql.Literal(rows - 1)
        )
        query = sql.SQL("SELECT {} FROM ({}) AS last").format(printed, inner)
        row = self._connection.execute(query).fetchone()
        return None if row is None else tuple(row)

    def _read(self, condition: sql.Composable) -> pa.Table:
        listed = sql.SQL(", ").join(selected(column) for column in self._table.columns)
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(listed, from_table(self._table), self._where(condition))
        return pa.Table.from_batches(copy_rows(self._connection, self._table, query, Lsn.ZERO), self._schema)

    def _where(self, condition: sql.Composable) -> sql.Composable:
        if self._table.row_filter is None:
            return condition
        return sql.SQL("{} AND ({})").format(condition, sql.SQL(self._table.row_filter))


def _steps(keys: Sequence[Key]) -> range:
    return range(0, len(keys), _KEYS_AT_ONCE)
