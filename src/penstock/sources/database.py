"""What a source of database tables has beyond its stream of changes: access to the rows that are in the tables.

::

    Source.database(instance) ─▶ Database
      ├─ snapshot() ─▶ Snapshot               all tables at one position, while the context lasts
      │    ├─ find(table)                     the table as it is at that position, or why it cannot be copied
      │    ├─ copy(table, tasks) ─▶ TableCopy  sent to workers, each of which reads a range
      │    └─ has_all_rows(table)             whether the copy is complete, asked after all ranges are read
      ├─ windows(table) ─▶ Windows            some rows, beside the stream, each as of a moment between two positions
      └─ now()                                a position at or after everything that is committed

Initial snapshot, incremental snapshot, verify and repair use these types only. All positions are positions of the
source's change log. Implementations raise Penstock's errors, or errors that `Database.translated_errors` translates.
"""

from __future__ import annotations

import datetime as dt
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import pyarrow as pa

from penstock.errors import TableError, UsageError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.produced_table import ProducedTable

__all__ = [
    "CopyOptions",
    "Database",
    "Key",
    "Report",
    "Snapshot",
    "TableCopy",
    "Tally",
    "Window",
    "Windows",
    "key_of",
    "printed",
]

Report = Callable[[str], None]
"""Receives what an operation waits for, for people to read."""


@dataclass(frozen=True)
class CopyOptions:
    """How the existing rows of tables are copied."""

    chunked: bool = False
    """Whether the initial snapshot is incremental: in key ranges, resumable, without a long transaction upstream."""
    chunk_rows: int = 20_000
    """The number of rows in the first range of an incremental snapshot, or of a repair of a whole table."""
    chunk_pause: timedelta = timedelta(0)
    sessions: int = 0
    """The most sessions that read at the same time; 0 for no limit."""
    rate: int = 0
    """The most bytes that they read per second, together; 0 for no limit."""

    def tables_at_a_time(self, most: int) -> int:
        """Return how many tables are copied at the same time, at most `most`."""
        return min(most, self.sessions or most)

    def sessions_of_a_table(self, tables: int, workers: int) -> int:
        """Return how many sessions read one of several tables that are copied at the same time."""
        return min(workers, max(1, self.sessions // tables)) if self.sessions else workers

    def pause_after_chunk(self, size: int, seconds: float) -> float:
        """Return how long to wait after a chunk of so many bytes, which took so many seconds."""
        needed = size / self.rate - seconds if self.rate else 0.0
        return max(self.chunk_pause.total_seconds(), needed)


class Database(ABC):
    """The upstream tables of one instance of a source."""

    options: CopyOptions = CopyOptions()

    @abstractmethod
    def snapshot(self, report: Report, stop: threading.Event) -> AbstractContextManager[Snapshot]:
        """Open a snapshot of all tables; `report` receives what it waits for, and `stop` ends the wait.

        Raise `TransientError` if it ends without a snapshot.
        """

    @abstractmethod
    def windows(self, table: ProducedTable, window: str, number: int = 0) -> Windows:
        """Return the windows over a table; those after `number`, of the snapshot or repair with the id `window`.

        Raise `TableError` for a table without a key.
        """

    @abstractmethod
    def now(self) -> Lsn:
        """Return a position at or after everything that is committed; the log reaches it without further changes."""

    def check_tables(self, durable: Lsn) -> Sequence[TableError]:
        """Return an error for each table whose changes since the last check, up to `durable`, may not all arrive.

        Called before tables are altered, while capture is stopped: that must not hide a gap of other tables.
        """
        return ()

    def translated_errors(self) -> AbstractContextManager[None]:
        """Translate the errors of the database's client library into Penstock's."""
        return nullcontext()


@dataclass(frozen=True)
class Snapshot(ABC):
    """All tables at one position: they contain what was committed at or before it, and nothing else."""

    position: Lsn

    @abstractmethod
    def find(self, table: ProducedTable) -> ProducedTable | str:
        """Return a captured table with the columns that it has here, or the reason why it cannot be copied."""

    def is_changed(self, table: ProducedTable) -> bool:
        """Return whether a table that cannot be copied exists, with another definition."""
        return False

    @abstractmethod
    def copy(self, table: ProducedTable, tasks: int, columns: int | None = None) -> TableCopy:
        """Return the copy of a table that `find` returned, for `tasks` workers; `columns` limits it to the first."""

    def has_all_rows(self, table: TableName) -> bool:
        """Return whether everything read from a table is valid: it was not truncated or rewritten meanwhile."""
        return True


@dataclass
class Tally:
    """How much of a range has been received."""

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class TableCopy(ABC):
    """A table at a snapshot, divided into ranges. It can be pickled, and is valid while the snapshot is open."""

    schema: TableSchema
    ranges: int
    """The number of ranges, at least one; together they contain every row once."""
    estimated_rows: int
    """0 if there is no estimate."""
    total_bytes: int
    """The size of the table upstream; 0 if it is not known."""

    def sessions(self) -> int:
        """Return how many ranges may be read at the same time; by default all of them."""
        return self.ranges

    @abstractmethod
    def read(self, number: int, tally: Tally) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, with the columns of `schema`, and count them in `tally`."""

    def watch(self) -> AbstractContextManager[Callable[[], Mapping[int, Tally]]]:
        """Return a function that says how much of the ranges that are being read has been sent, if that is known."""
        return nullcontext(_nothing)


def _nothing() -> Mapping[int, Tally]:
    return {}


Key = tuple[str, ...]
"""The values of a key's columns, each as a text that the database parses: see `printed`."""


@dataclass(frozen=True)
class Window:
    """Rows that were read, and the end of the window in the stream."""

    rows: pa.Table
    high: Lsn
    upto: Key | None = None
    """For a range: the last key that it can contain; None if no key follows the range."""


class Windows(ABC):
    """Reads rows of one table beside the stream.

    `begin` returns a position A. A window that is read afterwards has the state of each of its rows at some moment
    between A and the window's end B, so that applying the changes in (A, B] to it yields exactly their state at B.
    """

    KEYLESS_HINT: ClassVar[str] = "Add a primary key upstream."
    absent: Sequence[str] = ()
    """Columns that no longer exist upstream: they are null in all rows that are read."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        if not schema.key:
            message = f"{schema.table} has no key, so its rows cannot be read in watermark windows"
            raise TableError(str(schema.table), Lsn.ZERO, message, self.KEYLESS_HINT)

    @abstractmethod
    def begin(self, report: Report, stop: threading.Event) -> Lsn:
        """Return position A; wait until every transaction that was running at A has ended, or `stop` is set."""

    @abstractmethod
    def read_range(self, after: Key | None, rows: int) -> Window:
        """Read about `rows` rows whose keys follow `after`, in an order of the database."""

    @abstractmethod
    def read_keys(self, keys: Sequence[Key]) -> Window:
        """Read the rows with these keys."""

    def key_values(self, keys: Sequence[Key]) -> pa.Table:
        """Return keys as values of their columns; raise `UsageError` for a text that is not of the column's type."""
        columns = pa.schema([self.schema.columns.field(name) for name in self.schema.key])
        texts = list(zip(*keys, strict=True)) if keys else [()] * len(columns)
        try:
            return pa.table(
                [_parsed(column, field.type) for column, field in zip(texts, columns, strict=True)], columns
            )
        except (pa.ArrowException, ValueError):
            message = f"a key of {self.schema.table} does not have the types of its columns"
            raise UsageError(message, f"The columns are {', '.join(f'{f.name} {f.type}' for f in columns)}.") from None

    @abstractmethod
    def find_keys(self, where: str) -> list[Key]:
        """Return the keys of the rows that satisfy a condition in SQL; raise `UsageError` for an invalid one."""

    def total_bytes(self) -> int:
        """Return the size of the table upstream; 0 if it is not known."""
        return 0

    def close(self) -> None:  # noqa: B027 - a kind without a connection has nothing to close
        """Release the connection."""


def _parsed(texts: Sequence[str], of: pa.DataType) -> pa.Array:
    """Parse values that were printed by `printed`."""
    if pa.types.is_binary(of):
        return pa.array([bytes.fromhex(text.removeprefix("\\x")) for text in texts], of)
    return pa.array(texts, pa.string()).cast(of)


def key_of(given: object, names: Sequence[str]) -> Key:
    """Parse a key as users write it: a value, a list of values, or an object with the names of the columns."""
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise _not_a_key(names)
        values = [given[name] for name in names]
    else:
        values = list(given) if isinstance(given, list | tuple) else [given]
    if len(values) != len(names) or any(value is None or isinstance(value, dict | list) for value in values):
        raise _not_a_key(names)
    return tuple(map(printed, values))


def printed(value: object) -> str:
    r"""Print a value of a key: booleans as true and false, bytes as ``\x`` and hexadecimal digits, times as in ISO."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes() | bytearray() | memoryview():
            return "\\x" + bytes(value).hex()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case _:
            return str(value)


def _not_a_key(names: Sequence[str]) -> UsageError:
    example = "[1, 2]" if len(names) == 1 else '[{"' + '": …, "'.join(names) + '": …}]'
    return UsageError(
        f"a key of this table requires a value for each of: {', '.join(names)}", f"Write keys like {example}."
    )
