"""Which history the base tables need, and that the rest is released."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, TableRequest
from penstock.changelog.interface import ChangeLogWriter
from penstock.engine.lifecycle import TABLES
from penstock.engine.retention import oldest_base, release_history
from penstock.errors import TableError, UsageError
from penstock.home import Home
from penstock.layout import base_path, catalog_path, log_path
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

FAR = datetime(2200, 1, 1, tzinfo=UTC)


class Tables:
    """Orders and items: the test writes their log, and their bases exist in the catalog only."""

    def __init__(self, home: Path, retain: str) -> None:
        self.catalog = Catalog(catalog_path(home))
        instance = PostgresInstanceConfig(
            source="shop", connection="", publication="p", slot="s", tables=(), retain_history=retain
        )
        record = SourceRecord("shop", "POSTGRES", "{}", instance.model_dump_json(), SourceState.READY)
        tables = [TableRecord("shop", s.table, s.table.name, TableState.LIVE) for s in (ORDERS, ITEMS)]
        self.catalog.add_sources([(record, tables)])
        self.log = self.catalog.log("shop")
        self.log.create(Lsn(10))
        with closing(self.log.reader()) as reader:
            reader.set_lease(TABLES, Lsn(10))
        self.writer: ChangeLogWriter = self.log.writer()
        for schema in (ORDERS, ITEMS):
            self.writer.define(schema, Lsn(10))

    def change(self, schema: TableSchema, lsn: int) -> None:
        """A transaction that commits now."""
        at = time.time_ns() // 1000
        self.writer.publish([chunk(schema, [inserted(lsn)])], Lsn(lsn), committed_at=at)

    def base(self, schema: TableSchema, version: int, position: int) -> None:
        self.catalog.bases.note("shop", schema.table.name, BaseVersion(version, Lsn(position), schema))

    def newest(self, schema: TableSchema, upto: int) -> tuple[int, int] | None:
        found = self.catalog.bases.newest("shop", schema.table.name, Lsn(upto))
        return None if found is None else (found.version, found.position)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    tables = Tables(tmp_path / "home", "0 s")
    with closing(tables.writer):
        yield tables


def test_history_is_released_before_a_position_at_which_all_tables_have_a_base(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    for lsn in (20, 30, 40):
        tables.change(ORDERS, lsn)
        tables.change(ITEMS, lsn + 1)
    tables.base(ORDERS, 1, 31)
    tables.base(ITEMS, 1, 31)
    tables.base(ORDERS, 2, 40)
    assert release_history(tables.catalog, "shop") == 31
    assert tables.writer.retain(FAR).valid == 31
    release_history(tables.catalog, "shop")
    assert [tables.newest(schema, 35) for schema in (ORDERS, ITEMS)] == [(1, 31), (1, 31)]
    assert tables.newest(ORDERS, 30) is None, "no position before `valid` can be read"
    tables.base(ITEMS, 2, 41)
    assert release_history(tables.catalog, "shop") == 41, "orders did not change between 40 and 41"
    assert tables.newest(ORDERS, 41) == (2, 41)
    assert tables.newest(ORDERS, 40) == (2, 40), "which is still readable"


def test_idle_table_does_not_retain_history(tables: Tables) -> None:
    tables.base(ORDERS, 0, 15)
    tables.base(ITEMS, 0, 12)
    tables.change(ORDERS, 20)
    tables.base(ORDERS, 1, 20)
    assert release_history(tables.catalog, "shop") == 20
    tables.writer.publish([], Lsn(1000))
    assert release_history(tables.catalog, "shop") == 1000
    assert tables.newest(ITEMS, 5000) == (0, 1000)


def test_pending_table_retains_all_history(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.change(ORDERS, 20)
    tables.base(ORDERS, 1, 20)
    for waiting in (TableState.PENDING, TableState.RETRYING):
        tables.catalog.add_requests([TableRequest(TableRecord("shop", ITEMS.table, "items", waiting))])
        assert release_history(tables.catalog, "shop") is None
    assert tables.writer.retain(FAR).valid == 10
    tables.catalog.complete_request(TableRecord("shop", ITEMS.table, "items", TableState.RETRYING), TableState.FAILED)
    assert release_history(tables.catalog, "shop") == 20


def test_table_that_is_not_applied_retains_its_changes(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    tables.change(ORDERS, 20)
    assert release_history(tables.catalog, "shop") is None
    tables.change(ITEMS, 30)
    tables.base(ITEMS, 1, 30)
    assert release_history(tables.catalog, "shop") is None
    assert tables.writer.retain(FAR).valid == 10


def test_failed_table_keeps_a_base_until_its_error(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    tables.change(ITEMS, 20)
    tables.change(ORDERS, 30)
    tables.base(ORDERS, 1, 30)
    tables.writer.publish([], Lsn(40), errors=[TableError("public.items", 35, "failed", "fix it")])
    tables.catalog.set_table("shop", ITEMS.table, TableState.FAILED, error="failed")
    tables.change(ORDERS, 50)
    assert release_history(tables.catalog, "shop") is None, "orders have a base at 30, items do not"
    tables.base(ITEMS, 1, 30)
    assert release_history(tables.catalog, "shop") == 30
    assert tables.writer.retain(FAR).valid == 30
    assert tables.newest(ITEMS, 34) == (1, 30)
    tables.base(ORDERS, 2, 50)
    assert release_history(tables.catalog, "shop") == 50


def test_view_needs_the_bases_of_its_readable_tables(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    tables.change(ORDERS, 30)
    tables.base(ORDERS, 1, 30)
    tables.base(ITEMS, 1, 25)
    assert [oldest_base(tables.catalog, "shop", Lsn(at)) for at in (20, 28, 40)] == [10, 10, 25]
    tables.writer.publish([], Lsn(40), errors=[TableError("public.items", 35, "failed", "fix it")])
    tables.catalog.set_table("shop", ITEMS.table, TableState.FAILED, error="failed")
    assert [oldest_base(tables.catalog, "shop", Lsn(at)) for at in (20, 34, 40)] == [10, 25, 30]


def test_history_younger_than_the_retention_is_kept(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "home", "1 hour")
    with closing(tables.writer):
        tables.base(ORDERS, 0, 10)
        tables.change(ORDERS, 20)
        tables.base(ORDERS, 1, 20)
        assert release_history(tables.catalog, "shop") is None


def test_reader_can_be_forgotten(tables: Tables, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with closing(tables.log.reader()) as reader:
        reader.set_lease("reader nightly", Lsn(10))
        home.forget_reader("shop", "nightly")
        assert [lease.reader for lease in reader.leases()] == [TABLES]
    for name in ("nightly", TABLES):
        with pytest.raises(UsageError, match="no registered reader"):
            home.forget_reader("shop", name)


NO_COLUMNS = TableSchema(TableName("public", "idle"), pa.schema([]), ())


def test_running_home_keeps_its_log_small(database: Any, tmp_path: Path, in_process: None) -> None:
    """Under continuous writes, history advances, the log file does not grow, and every row is correct."""
    database.execute("CREATE TABLE busy (id int PRIMARY KEY, body text); CREATE TABLE idle (id int PRIMARY KEY)")
    database.execute("INSERT INTO busy SELECT n, 'x' FROM generate_series(1, 400) n; INSERT INTO idle VALUES (1)")
    home, store = Home(tmp_path / "home"), MemoryTables()
    home.create(database.url, "shop", retain_history="1 second")
    first_valid = home.frontiers("shop").valid
    with home.run(store) as running:
        running.wait_live(PATIENCE)
        updates = 0

        def has_moved() -> bool:
            nonlocal updates
            database.execute(f"UPDATE busy SET body = repeat(md5(random()::text), 20) WHERE id % 4 = {updates % 4}")
            updates += 1
            return home.frontiers("shop").valid > first_valid

        until(has_moved, "history to be released")
        idle: Any = home.live(store).table("shop.idle")
        assert idle.num_rows == 1
        database.execute("INSERT INTO idle VALUES (2)")
        assert all(verdict.equal for verdict in home.verify(store, "shop"))
        log_bytes = log_path(home.path, "shop").stat().st_size
        (source,) = home.status().sources
        assert {table.state for table in source.tables} == {"live"}

        def applied() -> bool:
            running.check()
            base = store.base(base_path(home.path, "shop", "idle").absolute(), NO_COLUMNS)
            return bool(base.current().num_rows == 2)

        until(applied, "apply of a table whose history was released before it changed again")
        assert [reader.name for reader in source.readers if reader.expires is None] == [TABLES]
    assert log_bytes < max(4 << 20, updates * 100 * 640), "the log is smaller than the changes written"
