"""What the base tables hold back of the history, and that the rest goes."""

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
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, Wish
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
    """Orders and items, their log written by hand, their bases only noted."""

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
            reader.pin(TABLES, Lsn(10))
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
    made = Tables(tmp_path / "home", "0 s")
    with closing(made.writer):
        yield made


def test_history_before_a_position_at_which_all_tables_have_a_base_is_released(tables: Tables) -> None:
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
    assert release_history(tables.catalog, "shop") == 41, "nothing happened to orders between 40 and 41"
    assert tables.newest(ORDERS, 41) == (2, 41)
    assert tables.newest(ORDERS, 40) == (2, 40), "which can still be read, too"


def test_an_idle_table_holds_nothing_back(tables: Tables) -> None:
    tables.base(ORDERS, 0, 15)
    tables.base(ITEMS, 0, 12)
    tables.change(ORDERS, 20)
    tables.base(ORDERS, 1, 20)
    assert release_history(tables.catalog, "shop") == 20
    tables.writer.publish([], Lsn(1000))
    assert release_history(tables.catalog, "shop") == 1000
    assert tables.newest(ITEMS, 5000) == (0, 1000)


def test_a_table_that_waits_for_its_copy_holds_all_of_it(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.change(ORDERS, 20)
    tables.base(ORDERS, 1, 20)
    for waiting in (TableState.PENDING, TableState.RETRYING):
        tables.catalog.wish([Wish(TableRecord("shop", ITEMS.table, "items", waiting))])
        assert release_history(tables.catalog, "shop") is None
    assert tables.writer.retain(FAR).valid == 10
    tables.catalog.grant(TableRecord("shop", ITEMS.table, "items", TableState.RETRYING), TableState.FAILED)
    assert release_history(tables.catalog, "shop") == 20


def test_a_table_that_has_not_been_applied_holds_its_changes(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    tables.change(ORDERS, 20)
    assert release_history(tables.catalog, "shop") is None
    tables.change(ITEMS, 30)
    tables.base(ITEMS, 1, 30)
    assert release_history(tables.catalog, "shop") is None
    assert tables.writer.retain(FAR).valid == 10


def test_a_failed_table_keeps_a_base_until_its_error_and_no_longer(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    tables.change(ITEMS, 20)
    tables.change(ORDERS, 30)
    tables.base(ORDERS, 1, 30)
    tables.writer.publish([], Lsn(40), errors=[TableError("public.items", 35, "over", "mend it")])
    tables.catalog.set_table("shop", ITEMS.table, TableState.FAILED, error="over")
    tables.change(ORDERS, 50)
    assert release_history(tables.catalog, "shop") is None, "orders have a base at 30 alone, items none there"
    tables.base(ITEMS, 1, 30)
    assert release_history(tables.catalog, "shop") == 30
    assert tables.writer.retain(FAR).valid == 30
    assert tables.newest(ITEMS, 34) == (1, 30)
    tables.base(ORDERS, 2, 50)
    assert release_history(tables.catalog, "shop") == 50


def test_a_view_needs_the_bases_of_tables_that_it_can_show(tables: Tables) -> None:
    tables.base(ORDERS, 0, 10)
    tables.base(ITEMS, 0, 10)
    tables.change(ORDERS, 30)
    tables.base(ORDERS, 1, 30)
    tables.base(ITEMS, 1, 25)
    assert [oldest_base(tables.catalog, "shop", Lsn(at)) for at in (20, 28, 40)] == [10, 10, 25]
    tables.writer.publish([], Lsn(40), errors=[TableError("public.items", 35, "over", "mend it")])
    tables.catalog.set_table("shop", ITEMS.table, TableState.FAILED, error="over")
    assert [oldest_base(tables.catalog, "shop", Lsn(at)) for at in (20, 34, 40)] == [10, 25, 30]


def test_history_that_is_younger_than_asked_for_stays(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "home", "1 hour")
    with closing(tables.writer):
        tables.base(ORDERS, 0, 10)
        tables.change(ORDERS, 20)
        tables.base(ORDERS, 1, 20)
        assert release_history(tables.catalog, "shop") is None


def test_a_reader_can_be_forgotten(tables: Tables, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with closing(tables.log.reader()) as reader:
        reader.pin("reader nightly", Lsn(10))
        home.forget_reader("shop", "nightly")
        assert [pin.reader for pin in reader.pins()] == [TABLES]
    for name in ("nightly", TABLES):
        with pytest.raises(UsageError, match="no registered reader"):
            home.forget_reader("shop", name)


NO_COLUMNS = TableSchema(TableName("public", "idle"), pa.schema([]), ())


def test_a_running_home_keeps_its_log_small(database: Any, tmp_path: Path, in_process: None) -> None:
    """Under writes that never stop, history moves on, the file does not grow, and every row is right."""
    database.execute("CREATE TABLE busy (id int PRIMARY KEY, body text); CREATE TABLE idle (id int PRIMARY KEY)")
    database.execute("INSERT INTO busy SELECT n, 'x' FROM generate_series(1, 400) n; INSERT INTO idle VALUES (1)")
    home, store = Home(tmp_path / "home"), MemoryTables()
    home.create(database.url, "shop", retain_history="1 second")
    began = home.frontiers("shop").valid
    with home.run(store) as running:
        running.wait_live(PATIENCE)
        written = 0

        def moved() -> bool:
            nonlocal written
            database.execute(f"UPDATE busy SET body = repeat(md5(random()::text), 20) WHERE id % 4 = {written % 4}")
            written += 1
            return home.frontiers("shop").valid > began

        until(moved, "history to be released")
        idle: Any = home.live(store).table("shop.idle")
        assert idle.num_rows == 1
        database.execute("INSERT INTO idle VALUES (2)")
        assert all(verdict.equal for verdict in home.verify(store, "shop"))
        size = log_path(home.path, "shop").stat().st_size
        (source,) = home.status().sources
        assert {table.state for table in source.tables} == {"live"}

        def applied() -> bool:
            running.check()
            base = store.base(base_path(home.path, "shop", "idle").absolute(), NO_COLUMNS)
            return bool(base.current().num_rows == 2)

        until(applied, "a table to be applied whose history was gone before it changed again")
        assert [reader.name for reader in source.readers if reader.expires is None] == [TABLES]
    assert size < max(4 << 20, written * 100 * 640), "less than what was written"
