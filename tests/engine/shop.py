"""A running home with one captured database, the source `shop`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.store import Catalog
from penstock.engine.catalog_records import instance_of
from penstock.engine.runner import HomeRunner
from penstock.engine.table_names import named_source
from penstock.home import Home
from penstock.layout import base_path, catalog_path
from penstock.live import Live
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import table_store
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE
from penstock.testing.waiting import until as until


@contextmanager
def running_shop(
    path: Path, database: Any, store_or_session: SparkSession | TableStore, setup: str, **options: Any
) -> Iterator[Shop]:
    """Create tables, capture them as source `shop`, and run the home."""
    database.execute(setup)
    home, reported, store = Home(path), list[str](), table_store(store_or_session)
    home.create(database.url, "shop", **options)
    with home.run(store, reported.append) as running:
        running.wait_live(PATIENCE)
        yield Shop(home, database, store, running, reported)


class Shop:
    """A running home with the source `shop`."""

    def __init__(self, home: Home, database: Any, store: TableStore, running: HomeRunner, reported: list[str]) -> None:
        self.home, self.database, self.store, self.running, self.reported = home, database, store, running, reported
        self.catalog = Catalog(catalog_path(home.path))

    @property
    def spark(self) -> SparkSession:
        """The Spark session, if the tables are in Spark."""
        return self.store.spark

    def live(self) -> Live:
        """A live view."""
        return self.home.live(self.store)

    def rows(self, table: str, source: str = "shop") -> list[dict[str, Any]]:
        """The rows of a live table, as of now."""
        frame: Any = self.live().table(f"{source}.{table}")
        read = frame.toArrow() if isinstance(frame, DataFrame) else frame
        rows: list[dict[str, Any]] = read.to_pylist()
        return rows

    def state(self, table: str) -> str | None:
        """The state of a table in the status; None if the status has no such table."""
        (source,) = self.home.status().sources
        return next((str(found.state) for found in source.tables if found.upstream == f"public.{table}"), None)

    def equal(self) -> bool:
        """Whether every table that can be compared equals its upstream table at one position."""
        verdicts = [verdict for verdict in self.home.verify(self.store, "shop") if verdict.error is None]
        assert verdicts
        return all(verdict.equal for verdict in verdicts)

    def all_equal(self) -> bool:
        """Whether all tables can be compared, and equal their upstream tables at one position."""
        verdicts = self.home.verify(self.store, "shop")
        assert [verdict.error for verdict in verdicts] == [None] * len(verdicts)
        return all(verdict.equal for verdict in verdicts)

    def values(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The values of some columns of a live table, sorted."""
        return sorted(tuple(row[name] for name in columns) for row in self.rows(table))

    def generation(self, table: str) -> int:
        """How often a table was captured again."""
        produced = instance_of(named_source(self.catalog, "shop")).produced()
        return next(each.generation for each in produced if each.name.name == table)

    def columns(self, table: str) -> list[str]:
        """The columns of a live table."""
        frame: Any = self.live().table(f"shop.{table}")
        return list(frame.columns if isinstance(frame, DataFrame) else frame.column_names)

    def base_columns(self, table: str) -> list[str]:
        """The columns of a base table."""
        state = self.store.base(self._path(table), TableSchema(TableName("public", table), pa.schema([]), ())).state()
        return [] if state is None else list(state.schema.columns.names)

    def published(self) -> set[str]:
        """The tables in the publication."""
        return {name for (name,) in self.database.execute("SELECT tablename FROM pg_publication_tables")}

    def _path(self, table: str) -> Path:
        return base_path(self.home.path, "shop", table).absolute()

    def plant(self, table: str, change: Callable[[DeltaTable], object]) -> None:
        """Change a Delta table without going through Penstock; live views show the change."""
        delta = DeltaTable.forPath(self.spark, str(self._path(table)))
        change(delta)
        self._record_version(table, delta.history(1).select("version").collect()[0][0])

    def tamper(self, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """The same for a table in memory."""
        assert isinstance(self.store, MemoryTables)
        self._record_version(table, self.store.tamper(self._path(table), change))

    def _record_version(self, table: str, version: int) -> None:
        """Let live views show a table version that Penstock did not write."""
        before = self.catalog.bases.newest("shop", table, Lsn((1 << 63) - 1))
        assert before is not None
        assert version > before.version
        self.catalog.bases.note("shop", table, type(before)(version, before.position, before.schema))

    @contextmanager
    def writing(self, *statements: str) -> Iterator[None]:
        """Execute statements repeatedly in a thread; their one parameter is an increasing number."""
        stop = threading.Event()

        def write() -> None:
            with self.database.connect() as connection:
                next_id = 1_000_000
                while not stop.is_set():
                    next_id += 1
                    for statement in statements:
                        connection.execute(statement, [next_id])
                    time.sleep(0.01)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
