"""Names of tables that users give for a known source."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.engine.table_names import named_table
from penstock.errors import UsageError
from penstock.layout import catalog_path
from penstock.model import TableName

TABLES = {
    TableName("public", "orders"): "orders",
    TableName("shop", "orders"): "shop_orders",
    TableName("public", "items"): "lines",
}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(catalog_path(tmp_path))
    tables = [TableRecord("shop", table, local, TableState.LIVE) for table, local in TABLES.items()]
    catalog.add_sources([(SourceRecord("shop", "POSTGRES", "{}", "{}", SourceState.READY), tables)])
    return catalog


@pytest.mark.parametrize(
    ("name", "upstream"),
    [
        ("orders", "public.orders"),
        ("public.orders", "public.orders"),
        ("shop.public.orders", "public.orders"),
        ("shop.lines", "public.items"),
        ("shop.orders", "shop.orders"),  # a schema takes precedence over the source
        ("shop.shop.orders", "shop.orders"),
    ],
)
def test_a_table_is_found_with_or_without_its_source(catalog: Catalog, name: str, upstream: str) -> None:
    assert str(named_table(catalog, "shop", name).upstream) == upstream


@pytest.mark.parametrize("name", ["items", "shop.items", "bank.orders", "shop", "", "shop."])
def test_other_names_are_errors(catalog: Catalog, name: str) -> None:
    with pytest.raises(UsageError, match="source shop has no table"):
        named_table(catalog, "shop", name)
