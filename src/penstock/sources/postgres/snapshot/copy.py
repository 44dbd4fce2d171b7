"""Read a table at an exported snapshot: binary COPY of page ranges, decoded by the compiled kernels.

::

    ranges of ctid ─▶ one session each: SET TRANSACTION SNAPSHOT ─▶ COPY … (FORMAT binary) ─▶ pump ─▶ split ─▶ Arrow

All sessions see the same snapshot. They take only the lock that any SELECT takes, and write nothing.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg import pq, sql

from penstock.errors import PenstockError, ProtocolError, TableError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.database import Tally
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.pgoutput.bad_values import BadColumn, bad_values_hint, describe_bad_values
from penstock.sources.postgres.replication.pump import Drained, Pump
from penstock.sources.postgres.replication.slot import import_snapshot
from penstock.sources.postgres.snapshot.copy_format import COUNT, HEADER, split_rows
from penstock.sources.postgres.types import BadValueError
from penstock.sources.postgres.types.rescue import RescuedTexts, decode_and_rescue, rescued_column

__all__ = [
    "PageRange",
    "copy_progress",
    "copy_range",
    "copy_ranges",
    "copy_rows",
    "from_table",
    "page_ranges",
    "select_expression",
    "select_list",
    "session_name",
    "table_bytes",
]

_BUFFER = 4 << 20
_LAST_PAGE = (1 << 32) - 1
_REPORT = "The server violates the format of COPY (FORMAT binary). Report this with the server's version."
_COALESCED = 512 << 10
_TAIL_MILLISECONDS = 5
"""Fewer bytes than `_COALESCED` may be the end of the copy: do not wait longer for more."""
_PAGE_INTS, _LINE_INTS = 1024, 16
"""Columns are written in parallel. At a distance of whole pages they would all compete for one set of the CPU cache."""
_LEAST_BYTES, _MOST_BYTES = 16 << 20, 256 << 20
"""How much of a table, including TOAST, one session copies: no tiny files, and little to repeat after a failure."""
_SIZE = """
SELECT coalesce(max(pg_relation_size(relation)), 0) / current_setting('block_size')::bigint,
       coalesce(sum(pg_table_size(relation)), 0)::bigint
  FROM (SELECT to_regclass(%(table)s)
         UNION ALL SELECT relid FROM pg_partition_tree(to_regclass(%(table)s))) AS t(relation)
"""


@dataclass(frozen=True)
class PageRange:
    """Pages [first, last) of a table."""

    first: int
    last: int


def copy_ranges(connection: psycopg.Connection[Any], table: TableName, tasks: int) -> list[PageRange]:
    """Divide a table among `tasks`: the same number of ranges each, unless the table is small, and none too large."""
    _, size = _pages_and_bytes(connection, table)
    rounds = -(-size // (_MOST_BYTES * tasks))
    return page_ranges(connection, table, min(rounds * tasks, size // _LEAST_BYTES))


def page_ranges(connection: psycopg.Connection[Any], table: TableName, pieces: int) -> list[PageRange]:
    """Divide a table's pages into ranges of about equal size; the last one is open-ended, in case the table has grown.

    A range of a partitioned table covers those pages of each partition; the largest partition determines the ranges.
    """
    pages, _ = _pages_and_bytes(connection, table)
    step = max(1, -(-pages // max(1, pieces)), 64)
    starts = list(range(0, max(pages, 1), step))
    return [PageRange(a, b) for a, b in zip(starts, [*starts[1:], _LAST_PAGE], strict=True)]


def _pages_and_bytes(connection: psycopg.Connection[Any], table: TableName) -> tuple[int, int]:
    name = sql.Identifier(table.schema, table.name).as_string(connection)
    row = connection.execute(_SIZE, {"table": name}).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def table_bytes(connection: psycopg.Connection[Any], table: TableName) -> int:
    """Return the size of a table upstream, including partitions and TOAST."""
    return _pages_and_bytes(connection, table)[1]


def copy_range(
    conninfo: str,
    snapshot: str,
    table: CapturedTable,
    pages: PageRange,
    lsn: Lsn,
    *,
    number: int = 0,
    tally: Tally | None = None,
    rate: float = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a page range as of the snapshot; `number` identifies the range among those of its table.

    With a `rate`, no more bytes per second are read: the server then waits until it can send.
    """
    name = session_name(table, number)
    with closing(connect(conninfo, patient=True, application_name=name)) as connection:
        import_snapshot(connection, snapshot)
        yield from copy_rows(connection, table, _pages_query(table, pages), lsn, tally, rate)


def copy_rows(
    connection: psycopg.Connection[Any],
    table: CapturedTable,
    query: sql.Composed,
    lsn: Lsn,
    tally: Tally | None = None,
    rate: float = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query over the columns of a table."""
    tally, began, received = tally or Tally(), time.monotonic(), 0
    command = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query)
    result = connection.pgconn.exec_(command.as_bytes(connection))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise _copy_error(result, table.name, lsn)
    offsets = _ValueOffsets(len(table.columns))
    for buffer, fill in _messages(connection, table.name):
        tally.bytes += fill
        received += fill
        if rate:
            time.sleep(max(0.0, began + received / rate - time.monotonic()))
        for batch in _batches(buffer, fill, table, offsets, lsn):
            tally.rows += batch.num_rows
            tally.bytes -= HEADER * batch.num_rows
            yield batch


def copy_progress(connection: psycopg.Connection[Any], table: CapturedTable) -> dict[int, Tally]:
    """Ask Postgres how much the sessions that copy a table have sent, by the number of their range."""
    query = (
        "SELECT a.application_name, c.tuples_processed, c.bytes_processed FROM pg_stat_progress_copy c"
        " JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database() AND a.application_name LIKE %s"
    )
    rows = connection.execute(query, (f"{_session_prefix(table)}%",)).fetchall()
    return {int(name.split()[3].lstrip("#")): Tally(sent, size) for name, sent, size in rows}


def session_name(table: CapturedTable, number: int) -> str:
    """Return the application name of the session that copies a range; Postgres keeps 63 bytes of it."""
    return f"{_session_prefix(table)}#{number} {table.name}".encode()[:63].decode(errors="ignore")


def _session_prefix(table: CapturedTable) -> str:
    return f"penstock copy {table.oid} "


_UNDEFINED_COLUMN = b"42703"


def _copy_error(result: pq.abc.PGresult, table: TableName, lsn: Lsn) -> PenstockError:
    """Classify an error of COPY: a missing table or column and a bad value are permanent, the rest is transient."""
    why = f"Postgres rejected the copy of {table}: {_one_line(result.error_message)}"
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    if state == _UNDEFINED_COLUMN:  # dropped, or renamed: capture determines that, and stops the table if necessary
        return TransientError(why, "The copy is retried automatically, with the present columns.")
    if state.startswith((b"22", b"42")):
        return TableError(str(table), lsn, why, f"Take a new snapshot of it: ALTER SOURCES … RETRY TABLE {table};")
    return TransientError(why, "The copy is retried automatically.")


def _pages_query(table: CapturedTable, pages: PageRange) -> sql.Composed:
    listed = select_list(table)
    where = sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({pages.first},0)"))
    if pages.last < _LAST_PAGE:
        where += sql.SQL(" AND ctid < {}::tid").format(sql.Literal(f"({pages.last},0)"))
    if table.row_filter is not None:  # printed by Postgres, from the publication
        where += sql.SQL(" AND ({})").format(sql.SQL(table.row_filter))
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(listed, from_table(table), where)


def from_table(table: CapturedTable) -> sql.Composed:
    """Return the FROM item of a table: without tables that inherit from it, but with its partitions."""
    name = sql.Identifier(table.name.schema, table.name.name)
    return sql.SQL("{}" if table.partitioned else "ONLY {}").format(name)


def select_list(table: CapturedTable) -> sql.Composed:
    """Return the expressions of all columns; a column that was dropped upstream is null."""
    expressions = (sql.SQL("NULL") if c.name in table.absent else select_expression(c) for c in table.columns)
    return sql.SQL(", ").join(expressions)


def select_expression(column: CapturedColumn) -> sql.Composable:
    """Return the expression of a column. The output function prints text, as in the stream; a cast may differ."""
    name = sql.Identifier(column.upstream)
    text = sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN format('%s', {0}) END")
    return text.format(name) if column.sent_as_text else name


def _messages(connection: psycopg.Connection[Any], table: TableName) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Yield filled buffers; each is valid until the next one."""
    with _coalesced_poll(connection.pgconn.socket) as poll:
        yield from _filled_buffers(Pump(connection.pgconn), poll)
    _check_end(connection, table)


def _filled_buffers(pump: Pump, poll: select.poll) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Yield buffers as they fill, until the server ends the COPY."""
    buffer, fill = np.empty(_BUFFER, np.uint8), 0
    while True:
        fill, drained = pump.drain(buffer, fill)
        if drained is Drained.IDLE and fill < _BUFFER // 2:
            poll.poll(_TAIL_MILLISECONDS)
            continue
        if drained is Drained.FULL and fill == 0:
            buffer = np.empty(pump.needed(), np.uint8)
            continue
        if fill:
            yield buffer, fill
            fill = 0
            if len(buffer) > _BUFFER:  # it was allocated for one large row
                buffer = np.empty(_BUFFER, np.uint8)
        if drained is Drained.ENDED:
            return


@contextmanager
def _coalesced_poll(descriptor: int) -> Iterator[select.poll]:
    """Yield a poll that wakes when much has arrived: the server sends 8 KB at a time, and each wakeup costs it time.

    Afterwards the socket wakes for any byte again, because replies to other commands are short.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    _wake_for(descriptor, _COALESCED)
    try:
        yield poll
    finally:
        _wake_for(descriptor, 1)


def _wake_for(descriptor: int, size: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


def _check_end(connection: psycopg.Connection[Any], table: TableName) -> None:
    result = connection.pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        reason = result.error_message if result is not None else connection.pgconn.error_message
        message = f"the copy of {table} was interrupted: {_one_line(reason)}"
        raise TransientError(message, "The copy is retried automatically.")
    while connection.pgconn.get_result() is not None:  # libpq accepts the next command only then
        pass


class _ValueOffsets:
    """Offsets and lengths of the values in a buffer; the memory is reused for each buffer."""

    def __init__(self, columns: int) -> None:
        rows = _BUFFER // (HEADER + COUNT + HEADER * columns) + 1
        spread = -(-rows // _PAGE_INTS) * _PAGE_INTS + _LINE_INTS
        self.off = np.empty((columns, spread), np.int32)
        self.length = np.empty((columns, spread), np.int32)


def _batches(
    buffer: npt.NDArray[np.uint8], fill: int, table: CapturedTable, offsets: _ValueOffsets, lsn: Lsn
) -> Iterator[pa.RecordBatch]:
    columns, schema = table.columns, table.table_schema().columns.remove_metadata()
    off, length = offsets.off, offsets.length
    at = 0
    while at < fill:
        rows, at = split_rows(buffer, at, fill, off, length)
        if rows < 0:
            message = f"malformed rows of {table.name} received from COPY"
            raise ProtocolError(message, _REPORT)
        if rows:
            arrays: list[pa.Array] = []
            bad: list[BadColumn] = []
            texts: list[RescuedTexts] = []
            for c, column in enumerate(columns):
                try:
                    array, rescued = _column(table, column, buffer, off[c, :rows], length[c, :rows])
                except BadValueError as value:
                    bad.append((column, value.reason))
                    continue
                arrays.append(array)
                texts += [] if rescued is None else [rescued]
            if bad:
                message = f"{table.name} cannot be copied: {describe_bad_values(bad)}"
                raise TableError(str(table.name), lsn, message, bad_values_hint(table, bad))
            if table.rescued_index is not None:
                arrays.insert(table.rescued_index, rescued_column(rows, texts))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(
    table: CapturedTable,
    column: CapturedColumn,
    buffer: npt.NDArray[np.uint8],
    off: npt.NDArray[np.int32],
    length: npt.NDArray[np.int32],
) -> tuple[pa.Array, RescuedTexts | None]:
    codec, is_text = column.codec(), column.sent_as_text
    if table.can_rescue(column):
        return decode_and_rescue(column.name, column.type, codec, buffer, off, length, is_text=is_text)
    return (codec.text if is_text else codec.binary)(buffer, off, length), None


def _one_line(message: bytes) -> str:
    return " ".join(message.decode(errors="replace").split())
