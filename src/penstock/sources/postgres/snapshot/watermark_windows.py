"""Watermark windows: rows that are read beside the stream, between two watermarks in it.

::

    begin    note a position A, and wait until every transaction that was running then has ended
    each     write LOW ─▶ read rows at one snapshot ─▶ write HIGH at position B

A window has the state of each of its rows at some moment between A and B. Applying the changes of the log in (A, B] to
it yields exactly the state at B (see docs/design.md). `begin` waits because a commit is in the WAL before it is
visible. A transaction that was running at A may have its commit record before A and still be invisible to a read after
A; for a transaction that began after A, neither is possible.

Only Postgres compares keys, with the collation of their columns. A key is transferred as the texts that Postgres prints
for its columns, and sent back as literals cast to their types. So every type and every collation is handled correctly,
and this module needs no order of its own. For a list of keys, Postgres returns their values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.errors import DefiniteError, UsageError
from penstock.fields import with_fields
from penstock.positions import Lsn
from penstock.sources.database import Key, Window, Windows
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect, error_text
from penstock.sources.postgres.replication.old_transactions import next_transaction, wait_for_transactions_before
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.sources.postgres.replication.watermark import Mark, Watermark, write_watermark
from penstock.sources.postgres.snapshot.copy import copy_rows, from_table, select_expression, select_list, table_bytes
from penstock.units import parse_duration

__all__ = ["KeyColumns", "WindowReader", "key_columns"]

_UNLIMITED = ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
_KEYS_AT_ONCE = 5_000


class WindowReader(Windows):
    """Reads rows of one table in windows, over one connection."""

    KEYLESS_HINT: ClassVar[str] = "Add a primary key upstream, or use snapshot = 'parallel'."

    def __init__(self, config: PostgresInstanceConfig, table: CapturedTable, window: str, number: int = 0) -> None:
        """Continue with the windows after `number` of the snapshot or repair whose random id is `window`."""
        super().__init__(table.table_schema())
        self.absent = table.absent
        self._config = config
        self._table = table
        self._window = window
        self._number = number
        self._columns = self.schema.columns.remove_metadata()
        self._connection = connect(config.connection, f"penstock window {table.name}"[:63])
        try:
            self._require_primary()
            self._key = key_columns(self._connection, table)
            self._update_names()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def begin(self, report: Callable[[str], None], stop: threading.Event) -> Lsn:
        """Return position A, from which on all changes count, after waiting for transactions that began before it."""
        position = wal_insert_position(self._connection)
        following = next_transaction(self._connection)
        wait_for_transactions_before(
            self._connection, following, parse_duration(self._config.snapshot_wait), report, stop
        )
        return position

    def total_bytes(self) -> int:
        """Return the size of the table upstream."""
        return table_bytes(self._connection, self._table.name)

    def read_range(self, after: Key | None, rows: int) -> Window:
        """Read about `rows` rows whose keys follow `after`, in the order of Postgres."""
        with self._watermarks() as high, self._snapshot():
            upto = self._bound(after, rows)
            found = self._read(self._key.between(after, upto))
        return Window(found, high(), upto)

    def read_keys(self, keys: Sequence[Key]) -> Window:
        """Read the rows with these keys."""
        with self._watermarks() as high, self._snapshot():
            parts = [self._read(self._key.among(keys[i : i + _KEYS_AT_ONCE])) for i in _steps(keys)]
        return Window(pa.concat_tables([self._columns.empty_table(), *parts]), high())

    def key_values(self, keys: Sequence[Key]) -> pa.Table:
        """Return keys as values of their columns, as Postgres parses them."""
        columns = tuple(column for name in self._table.key for column in self._table.columns if column.name == name)
        table = with_fields(self._table, columns=columns, rescue=False)
        listed = sql.SQL(", ").join(select_expression(column) for column in columns)
        parts: list[pa.RecordBatch] = []
        for i in _steps(keys):
            literals = sql.SQL(", ").join(map(self._key.literal, keys[i : i + _KEYS_AT_ONCE]))
            query = sql.SQL("SELECT {} FROM (VALUES {}) AS asked ({})").format(listed, literals, self._key.listed())
            parts += copy_rows(self._connection, table, query, Lsn.ZERO)
        return pa.Table.from_batches(parts, table.table_schema().columns.remove_metadata())

    def find_keys(self, where: str) -> list[Key]:
        """Return the keys of the upstream rows that satisfy a condition."""
        condition = sql.SQL(where.replace("{", "{{").replace("}", "}}")).format()
        try:
            with self._snapshot():
                self._require_same_names()
                query = sql.SQL("SELECT {} FROM {} WHERE ({})").format(
                    self._key.printed(), from_table(self._table), condition
                )
                return [tuple(row) for row in self._connection.execute(query.as_bytes(self._connection)).fetchall()]
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.errors.ReadOnlySqlTransaction) as error:
            message = f"Postgres rejects this condition: {error_text(error)}"
            raise UsageError(message, "Write a condition as after WHERE, over the columns of the table.") from error

    # -- internals --------------------------------------------------------------------------------------------------

    def _require_primary(self) -> None:
        if self._query_value("SELECT pg_is_in_recovery()") is True:
            message = "a standby accepts no watermarks, so rows cannot be read in watermark windows there"
            raise DefiniteError(message, "Use the primary in the connection, or snapshot = 'parallel'.")

    def _query_value(self, query: str) -> Any:
        row = self._connection.execute(query).fetchone()
        return row[0] if row else None

    @contextmanager
    def _watermarks(self) -> Iterator[Callable[[], Lsn]]:
        """Write LOW before and HIGH after; the yielded function returns the position of HIGH afterwards."""
        self._number += 1
        ends: list[Lsn] = []
        self._mark(Mark.LOW)
        yield lambda: ends[0]
        ends.append(self._mark(Mark.HIGH))

    def _mark(self, mark: Mark) -> Lsn:
        watermark = Watermark(self._config.identity, self._window, self._number, mark)
        return write_watermark(self._connection, self._config.watermarks, watermark)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Run all queries in one read-only snapshot, without timeouts.

        The table is locked before the snapshot is taken, as any query locks it. Otherwise a query could wait for an
        ALTER TABLE that rewrites the table, and the table would look empty to the older snapshot. While it is locked,
        no column is renamed.
        """
        connection = self._connection
        for setting in _UNLIMITED:
            connection.execute(sql.SQL("SET {} = 0").format(sql.Identifier(setting)))
        connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(from_table(self._table)))
            self._update_names()
            yield
        except BaseException:
            if not connection.broken:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _require_same_names(self) -> None:
        """Raise if a condition could mean other columns upstream than downstream."""
        renamed = [f"{column.name} is {column.renamed} now" for column in self._table.columns if column.renamed]
        if renamed:
            message = f"columns of {self._table.name} were renamed upstream: {', '.join(renamed)}"
            raise UsageError(message, "Name the rows by their keys, instead of a condition; or resnapshot the table.")

    def _update_names(self) -> None:
        """Look up the present names of the columns."""
        names = dict(self._connection.execute(_NAMES, (self._table.oid,)).fetchall())
        table = self._table.with_names(names)
        if table != self._table:
            self._table, self._key = table, key_columns(self._connection, table)

    def _bound(self, after: Key | None, rows: int) -> Key | None:
        """Return the key of the last of `rows` rows; None if there are fewer."""
        printed = self._key.printed()
        order = self._key.listed()
        inner = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} OFFSET {} LIMIT 1").format(
            order, from_table(self._table), self._where(self._key.between(after, None)), order, sql.Literal(rows - 1)
        )
        query = sql.SQL("SELECT {} FROM ({}) AS last").format(printed, inner)
        row = self._connection.execute(query).fetchone()
        return None if row is None else tuple(row)

    def _read(self, condition: sql.Composable) -> pa.Table:
        listed = select_list(self._table)
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(listed, from_table(self._table), self._where(condition))
        return pa.Table.from_batches(copy_rows(self._connection, self._table, query, Lsn.ZERO), self._columns)

    def _where(self, condition: sql.Composable) -> sql.Composable:
        if self._table.row_filter is None:
            return condition
        return sql.SQL("{} AND ({})").format(condition, sql.SQL(self._table.row_filter))


def _steps(keys: Sequence[Key]) -> range:
    return range(0, len(keys), _KEYS_AT_ONCE)


_NAMES = "SELECT attnum, attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
_TYPES = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
 WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.attisdropped
"""


@dataclass(frozen=True)
class KeyColumns:
    """The key columns of a table, by their names upstream, with their types as Postgres writes them."""

    names: tuple[str, ...]
    types: tuple[str, ...]

    def listed(self) -> sql.Composed:
        """Return ``"a", "b"``: also an ORDER BY."""
        return sql.SQL(", ").join(map(sql.Identifier, self.names))

    def printed(self) -> sql.Composed:
        """Return the expressions of the columns as text."""
        return sql.SQL(", ").join(sql.SQL("format('%s', {})").format(sql.Identifier(name)) for name in self.names)

    def row(self) -> sql.Composed:
        """Return ``("a", "b")``."""
        return sql.SQL("({})").format(self.listed())

    def literal(self, key: Key) -> sql.Composed:
        """Return a key as a row of literals."""
        casts = (sql.SQL(f"CAST({{}} AS {kind})").format(v) for v, kind in zip(key, self.types, strict=True))
        return sql.SQL("({})").format(sql.SQL(", ").join(casts))

    def between(self, after: Key | None, upto: Key | None) -> sql.Composable:
        """Return the condition of a range (after, upto]; None is no bound."""
        conditions: list[sql.Composable] = [sql.SQL("true")]
        if after is not None:
            conditions.append(sql.SQL("{} > {}").format(self.row(), self.literal(after)))
        if upto is not None:
            conditions.append(sql.SQL("{} <= {}").format(self.row(), self.literal(upto)))
        return sql.SQL(" AND ").join(conditions)

    def among(self, keys: Sequence[Key]) -> sql.Composed:
        """Return the condition of a list."""
        return sql.SQL("{} IN ({})").format(self.row(), sql.SQL(", ").join(map(self.literal, keys)))


def key_columns(connection: psycopg.Connection[Any], table: CapturedTable) -> KeyColumns:
    """Look up the types of a table's key columns."""
    names = table.upstream_key
    found = dict(connection.execute(_TYPES, (table.oid, list(names))).fetchall())
    return KeyColumns(names, tuple(found.get(name, "text") for name in names))
