"""How a live view resolves table names, and the errors of tables that cannot be read. These tests need no Spark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import DefiniteError, TableError, TransientError, UsageError
from penstock.layout import catalog_path, log_path
from penstock.live import Live
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.types import PostgresType

NO_SPARK: Any = None
TABLES = {
    TableName("public", "orders"): "orders",
    TableName("public", "Users"): "public_Users",
    TableName("public", "users"): "public_users_2",
    TableName("sales", "a.b"): "a.b",
}


def captured(table: TableName) -> CapturedTable:
    return CapturedTable(name=table, oid=1, key=("id",), columns=(CapturedColumn("id", PostgresType(20), True),))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(catalog_path(tmp_path))
    instance = PostgresInstanceConfig(
        source="shop", connection="", publication="p", slot="s", tables=tuple(captured(table) for table in TABLES)
    )
    record = SourceRecord("shop", "POSTGRES", "{}", instance.model_dump_json(), SourceState.CREATING)
    tables = [TableRecord("shop", table, local, TableState.PENDING) for table, local in TABLES.items()]
    failed = TableRecord(
        "shop", TableName("public", "notes"), "notes", TableState.FAILED, "it has no primary key", "Run: ALTER TABLE"
    )
    catalog.add_sources([(record, [*tables, failed])])
    SqliteLog(log_path(tmp_path, "shop")).create(Lsn(10))
    return catalog


def live_at(home: Path, catalog: Catalog, **positions: Lsn) -> Live:
    return Live(home, catalog, NO_SPARK, positions, None, lambda _: live_at(home, catalog, **positions))


@pytest.fixture
def live(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Live:
    """A live view that returns the upstream name of a table in place of its rows."""
    monkeypatch.setattr(Live, "_live_frame", lambda self, record: str(record.upstream))
    return live_at(tmp_path, catalog, shop=Lsn(10))


@pytest.mark.parametrize(
    ("name", "upstream"),
    [
        ("shop.orders", "public.orders"),
        ("SHOP.Orders", "public.orders"),
        ("shop.public.orders", "public.orders"),
        ("shop.public_users", "public.Users"),
        ("shop.public_users_2", "public.users"),
        ("public.orders", "public.orders"),
        ("Sales.a.b", "sales.a.b"),
        ("shop.a.b", "sales.a.b"),
        ("shop.sales.a.b", "sales.a.b"),
        ("shop.notes", "public.notes"),
    ],
)
def test_table_by_name(live: Live, name: str, upstream: str) -> None:
    table: object = live.table(name)
    assert table == upstream


@pytest.mark.parametrize("name", ["orders", "shop", "shop.public.users", "shop.public.Users", "bank.orders", ""])
def test_unknown_and_ambiguous_names(live: Live, name: str) -> None:
    with pytest.raises(UsageError, match="there is no table") as caught:
        live.table(name)
    assert "shop.orders" in caught.value.hint


def test_table_whose_snapshot_is_not_complete(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(TransientError, match=r"the initial snapshot of public\.orders is not complete"):
        live_at(tmp_path, catalog, shop=Lsn(10)).table("shop.orders")


def test_table_before_its_snapshot(tmp_path: Path, catalog: Catalog) -> None:
    schema = captured(TableName("public", "orders")).table_schema()
    for version, position in ((0, 50), (1, 60)):
        catalog.bases.note("shop", "orders", BaseVersion(version, Lsn(position), schema))
    with pytest.raises(
        DefiniteError, match=r"the snapshot of public\.orders is at 0/32: it cannot be read as of 0/28"
    ) as caught:
        live_at(tmp_path, catalog, shop=Lsn(40)).table("shop.orders")
    assert "0/32" in caught.value.hint


def test_table_that_is_not_captured(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(DefiniteError, match=r"public\.notes is not captured: it has no primary key") as caught:
        live_at(tmp_path, catalog, shop=Lsn(10)).table("shop.notes")
    assert caught.value.hint == "Run: ALTER TABLE"


def test_failed_table_is_readable_before_its_error_and_not_after(tmp_path: Path, catalog: Catalog) -> None:
    with closing(SqliteLog(log_path(tmp_path, "shop")).writer()) as writer:
        writer.define(captured(TableName("public", "orders")).table_schema(), Lsn(10))
        error = TableError("public.orders", 30, "it changed its columns", "RETRY TABLE")
        writer.publish([], Lsn(40), errors=[error])
    for position in (30, 31, 40):
        with pytest.raises(TableError, match="it changed its columns"):
            live_at(tmp_path, catalog, shop=Lsn(position)).table("shop.orders")
    with pytest.raises(TransientError, match=r"the initial snapshot of public\.orders is not complete"):
        live_at(tmp_path, catalog, shop=Lsn(29)).table("shop.orders")


def test_source_that_is_being_created(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(TransientError, match="source shop is being created or dropped"):
        live_at(tmp_path, catalog).table("shop.orders")


def test_position_requires_exactly_one_source(tmp_path: Path, catalog: Catalog) -> None:
    assert live_at(tmp_path, catalog, shop=Lsn(10)).position == 10
    with pytest.raises(UsageError, match="does not have exactly one source"):
        _ = live_at(tmp_path, catalog, shop=Lsn(10), bank=Lsn(20)).position
