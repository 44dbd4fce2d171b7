"""``FROM SQLITE``: tables of a SQLite file, captured by triggers that write a change table. The README explains it."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources import database as base
from penstock.sources.interface import InstanceConfig, Kind, Source, SourceOptions, is_name
from penstock.sources.polling import PollingConfig, PollingFactory, PollingInstance
from penstock.sources.polling_steps import Changes, Step
from penstock.sources.produced_table import ProducedTable
from penstock.sources.row_tables import RowTable

TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}
BATCH_ROWS = 10_000
OURS = "name LIKE 'penstock@_%' ESCAPE '@'"
LAST = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'penstock_changes'), 0)"


class SqlOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str = Field(description="the SQLite file, in WAL mode")
    tables: tuple[str, ...] = Field(default=(), description="the tables to capture; all by default")


class WithOptions(SourceOptions):
    chunked: bool = Field(default=False, description="copy existing rows in key ranges")


class SqliteConfig(PollingConfig):
    path: str

    def prepare(self) -> Self:
        columns = "".join(f", c{n}" for n in range(max(len(table.table_schema().columns) for table in self.tables)))
        with connected(self.path, "BEGIN IMMEDIATE") as db:
            db.execute(f"CREATE TABLE penstock_changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, tbl, image{columns})")
            for table in self.tables:
                create_triggers(db, table.table_schema())
        return self

    def cleanup(self) -> list[str]:
        with connected(self.path, "BEGIN IMMEDIATE") as db:
            found = db.execute(f"SELECT type, name FROM sqlite_master WHERE {OURS} ORDER BY type DESC").fetchall()
            for kind, name in found:
                db.execute(f"DROP {kind} {quoted(name)}")
        return [f"{kind} {name}" for kind, name in found]

    def triggers(self) -> list[str]:
        return [name for table in self.tables for name in trigger_names(table.name)]

    def cleanup_statements(self) -> list[str]:
        triggers = [f"DROP TRIGGER IF EXISTS {name};" for name in self.triggers()]
        return [f"-- in {self.path}", *triggers, "DROP TABLE IF EXISTS penstock_changes;"]

    def place(self) -> str:
        return self.path


class SqliteSource(Source, SqlOptions, WithOptions):
    NAME: ClassVar[str] = "SQLITE"
    SqlOptions: ClassVar[type[BaseModel]] = SqlOptions
    WithOptions: ClassVar[type[SourceOptions]] = WithOptions
    SCHEMES: ClassVar[frozenset[str]] = frozenset({"sqlite"})

    @classmethod
    def from_urls(cls, urls: Sequence[str], name: str | None = None, **options: Any) -> Self:
        path = Path(urls[0].removeprefix("sqlite://"))
        return cls.of(name or (path.stem if is_name(path.stem) else "sqlite"), path=str(path), **options)

    def create_instances(self, workers: int) -> Sequence[SqliteConfig]:
        with connected(self.path) as db:
            if db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                message = f"{self.path} is not in WAL mode"
                raise DefiniteError(message, "Run in it: PRAGMA journal_mode = WAL;")
            query = f"SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND NOT {OURS}"
            tables = tuple(describe(db, name) for name in self.tables or [row[0] for row in db.execute(query)])
        return [SqliteConfig(source=self.name, path=self.path, tables=tables, retain_history=self.retain_history)]

    def upstream(self) -> str:
        return self.path

    def database(self, instance: InstanceConfig) -> base.Database:
        return SqliteDatabase(self)


class SqliteInstance(PollingInstance[SqliteConfig]):
    """A position is the number of a change. A step ends at a mark or at the last change, and all of it is there."""

    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        with connected(self._config.path) as db:
            if db.execute("SELECT 1 FROM penstock_changes WHERE seq <= ?", (at,)).fetchone():
                db.execute("DELETE FROM penstock_changes WHERE seq <= ?", (at,))  # the log has them
            db.execute("BEGIN")
            (mark,) = db.execute("SELECT min(seq) FROM penstock_changes WHERE tbl IS NULL").fetchone()
            upto = mark or db.execute(LAST).fetchone()[0]
            (count,) = db.execute("SELECT count(*) FROM penstock_changes WHERE seq <= ?", (upto,)).fetchone()
            altered = [t.name for t in self._config.tables if describe(db, t.name.name).columns != t.columns]
            found = {quoted(row[0]) for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
            if altered or count != upto - at or not found.issuperset(self._config.triggers()):
                why = f"{altered[0]} has other columns" if altered else "a trigger was dropped, or changes are missing"
                message = f"changes of {self._config.path} after {at} may be lost: {why}"
                raise DefiniteError(message, f"Run: penstock drop {self._config.source}; then create it again.")
            changes = [self._changes(db, table.table_schema(), upto, count) for table in self._config.tables]
        return Step([each for each in changes if each], transactions=count) if count else None

    def _changes(self, db: sqlite3.Connection, schema: TableSchema, upto: int, count: int) -> Changes | None:
        columns = ", ".join(f"c{n}" for n in range(len(schema.columns)))
        query = f"SELECT image, {columns} FROM penstock_changes WHERE tbl = ? AND seq <= ? ORDER BY seq"
        found = db.execute(query, (schema.table.name, upto)).fetchall()
        if not found:
            return None
        rows = table_of([row[1:] for row in found], schema.columns).to_batches()[0]
        images = np.array([row[0] for row in found], np.int8)
        return Changes(schema.table, rows, images, np.full(len(found), count - 1, np.int64))

    def pause(self) -> float:
        return 0.1


class SqliteDatabase(base.Database):
    def __init__(self, source: SqliteSource) -> None:
        self._path = source.path
        self.options = base.CopyOptions(source.chunked)

    @contextmanager
    def snapshot(self, report: base.Report, stop: threading.Event) -> Iterator[SqliteSnapshot]:
        """Begin to read while the write lock is held for a mark: the reader has exactly the changes before the mark."""
        with tempfile.TemporaryDirectory(prefix="penstock-sqlite-") as folder:
            path = str(Path(folder) / "copy.db")
            with connected(self._path, "BEGIN") as reader, connected(path, mode="rwc") as copy:
                with connected(self._path, "BEGIN IMMEDIATE") as db:
                    position = marked(db)
                    reader.execute(LAST).fetchone()
                reader.backup(copy)
            yield SqliteSnapshot(position, path)

    def windows(self, table: ProducedTable, window: str, number: int = 0) -> SqliteWindows:
        return SqliteWindows(table.table_schema(), self._path)

    def now(self) -> Lsn:
        with connected(self._path) as db:
            return Lsn(db.execute(LAST).fetchone()[0])


@dataclass(frozen=True)
class SqliteSnapshot(base.Snapshot):
    path: str

    def find(self, table: ProducedTable) -> ProducedTable | str:
        with connected(self.path) as db:
            same = describe(db, table.name.name).table_schema() == table.table_schema()
        return table if same else "its columns changed upstream"

    def copy(self, table: ProducedTable, tasks: int, columns: int | None = None) -> SqliteCopy:
        with connected(self.path) as db:
            (rows,) = db.execute(f"SELECT count(*) FROM {quoted(table.name.name)}").fetchone()
        return SqliteCopy(table.table_schema(), max(1, min(tasks, rows // BATCH_ROWS)), rows, 0, self.path)


@dataclass(frozen=True)
class SqliteCopy(base.TableCopy):
    path: str

    def read(self, number: int, tally: base.Tally) -> Iterator[pa.RecordBatch]:
        first, last = (self.estimated_rows * n // self.ranges for n in (number, number + 1))
        limits = f"ORDER BY {quoted(*self.schema.key)} LIMIT {last - first} OFFSET {first}"
        with connected(self.path) as db:
            found = db.execute(f"{select(self.schema)} {limits}")
            while rows := found.fetchmany(BATCH_ROWS):
                tally.rows += len(rows)
                yield from table_of(rows, self.schema.columns).to_batches()


class SqliteWindows(base.Windows):
    def __init__(self, schema: TableSchema, path: str) -> None:
        super().__init__(schema)
        self._path = path
        self._key = quoted(*schema.key)
        self._marks = ", ".join("?" * len(schema.key))

    def begin(self, report: base.Report, stop: threading.Event) -> Lsn:
        with connected(self._path) as db:  # a commit is visible at once: there is no transaction to wait for
            return Lsn(db.execute(LAST).fetchone()[0])

    def read_range(self, after: base.Key | None, rows: int) -> base.Window:
        where = f"WHERE ({self._key}) > ({self._marks})" if after else ""
        query = f"{select(self.schema)} {where} ORDER BY {self._key} LIMIT {rows}"
        with connected(self._path) as db:
            found = table_of(db.execute(query, *self._values([after] if after else [])).fetchall(), self.schema.columns)
            last = found.slice(rows - 1).select(self.schema.key).to_pylist()
            return base.Window(found, marked(db), base.key_of(last[0], self.schema.key) if last else None)

    def read_keys(self, keys: Sequence[base.Key]) -> base.Window:
        query = f"{select(self.schema)} WHERE ({self._key}) = ({self._marks})"
        with connected(self._path) as db:
            found = [row for values in self._values(keys) for row in db.execute(query, values)]
            return base.Window(table_of(found, self.schema.columns), marked(db))

    def find_keys(self, where: str) -> list[base.Key]:
        query = f"SELECT {self._key} FROM {quoted(self.schema.table.name)} WHERE ({where})"
        with connected(self._path, mode="ro") as db:
            try:
                return [base.key_of(row, self.schema.key) for row in db.execute(query)]
            except sqlite3.Error as error:
                message = f"SQLite rejects this condition: {error}"
                raise UsageError(message, "Write it as after WHERE.") from error

    def _values(self, keys: Sequence[base.Key]) -> list[list[Any]]:
        return [list(row.values()) for row in self.key_values(keys).to_pylist()]


def describe(db: sqlite3.Connection, table: str) -> RowTable:
    found = db.execute("SELECT name, upper(type), pk FROM pragma_table_info(?)", (table,)).fetchall()
    key = tuple(name for name, _, pk in sorted(found, key=lambda row: row[2]) if pk)
    if not key or any(kind not in TYPES for _, kind, _ in found):
        message = (
            f"table {table} does not exist, has no primary key, or has a column that is none of {', '.join(TYPES)}"
        )
        raise DefiniteError(message, "Create it so, or name the tables to capture: TABLES ('a', 'b').")
    return RowTable.of(TableName("main", table), pa.schema([(name, TYPES[kind]) for name, kind, _ in found]), key)


def create_triggers(db: sqlite3.Connection, schema: TableSchema) -> None:
    def write(image: Image, row: str, where: str = "") -> str:
        kept = schema.key if image is Image.DELETED_KEY else schema.columns.names
        values = ", ".join(f"{row}.{quoted(name)}" if name in kept else "NULL" for name in schema.columns.names)
        columns, table = ", ".join(f"c{n}" for n in range(len(schema.columns))), schema.table.name.replace("'", "''")
        return f"INSERT INTO penstock_changes (tbl, image, {columns}) SELECT '{table}', {int(image)}, {values} {where};"

    moved = " OR ".join(f"OLD.{quoted(name)} IS NOT NEW.{quoted(name)}" for name in schema.key)
    upsert, delete = write(Image.UPDATED, "NEW"), write(Image.DELETED_KEY, "OLD")
    bodies = {"INSERT": upsert, "UPDATE": write(Image.DELETED_KEY, "OLD", f"WHERE {moved}") + upsert, "DELETE": delete}
    for name, (event, body) in zip(trigger_names(schema.table), bodies.items(), strict=True):
        db.execute(f"CREATE TRIGGER {name} AFTER {event} ON {quoted(schema.table.name)} BEGIN {body} END")


def trigger_names(table: TableName) -> list[str]:
    return [quoted(f"penstock_{table.name}_{event}") for event in ("insert", "update", "delete")]


def table_of(rows: Sequence[Sequence[Any]], columns: pa.Schema) -> pa.Table:
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    try:
        return pa.table([pa.array(v, field.type) for v, field in zip(values, columns, strict=True)], schema=columns)
    except pa.ArrowException:
        message = "a value does not have the type of its column"
        raise DefiniteError(message, "Fix it, or capture other tables.") from None


def quoted(*names: str) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def select(schema: TableSchema) -> str:
    return f"SELECT {quoted(*schema.columns.names)} FROM {quoted(schema.table.name)}"


def marked(db: sqlite3.Connection) -> Lsn:
    return Lsn(db.execute("INSERT INTO penstock_changes (tbl) VALUES (NULL)").lastrowid or 0)


@contextmanager
def connected(path: str, begin: str = "", mode: str = "rw") -> Iterator[sqlite3.Connection]:
    url = f"{Path(path).absolute().as_uri()}?mode={mode}"
    try:
        with closing(sqlite3.connect(url, timeout=30, isolation_level=None, uri=True)) as db:  # closing it rolls back
            db.execute(begin)
            yield db
            if db.in_transaction:
                db.execute("COMMIT")
    except sqlite3.Error as error:
        message = f"could not use {path}: {error}"
        raise TransientError(message, "Check the file and its permissions.") from error


KIND = Kind(SqliteSource, SqliteConfig, lambda: PollingFactory(SqliteInstance))
