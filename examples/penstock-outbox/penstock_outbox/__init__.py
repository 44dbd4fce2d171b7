"""``FROM SQLITE OUTBOX``: captures an append-only table of a SQLite file, by rowid."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import DefiniteError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.interface import Kind, Source, SourceOptions
from penstock.sources.polling import PollingConfig, PollingFactory, PollingInstance
from penstock.sources.polling_steps import Step, inserted
from penstock.sources.row_tables import RowTable
from penstock.units import parse_duration

TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}
BATCH_ROWS = 10_000


class SqlOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="the SQLite file")
    table: str = Field(default="outbox", description="the append-only table")


class WithOptions(SourceOptions):
    poll_interval: str = Field(default="1 s", description="how often the table is polled")


class OutboxConfig(PollingConfig):
    path: str
    table: str
    poll_interval: str

    def place(self) -> str:
        return f"{self.path}, table {self.table}"


class OutboxSource(Source, SqlOptions, WithOptions):
    NAME: ClassVar[str] = "SQLITE OUTBOX"
    SqlOptions: ClassVar[type[BaseModel]] = SqlOptions
    WithOptions: ClassVar[type[SourceOptions]] = WithOptions

    def create_instances(self, workers: int) -> Sequence[OutboxConfig]:
        with reading(self.path) as db:
            found = db.execute("SELECT name, upper(type), pk FROM pragma_table_info(?)", (self.table,)).fetchall()
        if not found or any(kind not in TYPES for _, kind, _ in found):
            message = f"{self.path} has no table {self.table}, or one with a column that is none of {', '.join(TYPES)}"
            raise DefiniteError(message, "Create the table, or name another one: TABLE 'name'.")
        columns = pa.schema([(name, TYPES[kind]) for name, kind, _ in found])
        table = RowTable.of(TableName(self.name, self.table), columns, tuple(name for name, _, pk in found if pk))
        options = {"source": self.name, "path": self.path, "table": self.table, "poll_interval": self.poll_interval}
        return [OutboxConfig(**options, tables=(table,), retain_history=self.retain_history)]

    def place(self) -> str:
        return f"{self.path}, table {self.table}"


class OutboxInstance(PollingInstance[OutboxConfig]):
    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        table = '"' + self._config.table.replace('"', '""') + '"'
        query = f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {BATCH_ROWS}"
        with reading(self._config.path) as db:
            found = db.execute(query, (noted.get("rowid", 0),)).fetchall()
        if not found:
            return None
        rowids, *values = zip(*found, strict=True)
        schema = self._config.tables[0].table_schema()
        try:
            arrays = [pa.array(column, field.type) for column, field in zip(values, schema.columns, strict=True)]
        except pa.ArrowException:
            message = f"a row after rowid {noted.get('rowid', 0)} has a value that is not of the type of its column"
            raise DefiniteError(message, f"Fix it, then: ALTER SOURCES {self._config.source} RETRY TABLE …;") from None
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema.columns)
        return Step([inserted(schema.table, rows)], {"rowid": rowids[-1]})

    def pause(self) -> float:
        return parse_duration(self._config.poll_interval).total_seconds()


@contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as db:
            yield db
    except (sqlite3.Error, ValueError) as error:
        message = f"could not read {path}: {error}"
        raise TransientError(message, "Check that the file exists and that this user may read it.") from error


KIND = Kind(OutboxSource, OutboxConfig, lambda: PollingFactory(OutboxInstance))
