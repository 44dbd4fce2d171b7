"""Results of SHOW statements: patterns, readers, and the tables of the status."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.status_document import HomeStatus, ReaderStatus, SourceStatus, TableStatus
from penstock.errors import UsageError
from penstock.sources.interface import check_name
from penstock.sql.show_statements import (
    STATUS_TABLES,
    matching,
    show_readers,
    show_sources,
    show_tables,
    status_table,
)


def source(name: str, *tables: str) -> SourceStatus:
    found = [TableStatus(f"{name}.{table}", f"public.{table}", "live", "0/10", 3, None, None) for table in tables]
    fields: dict[str, Any] = dict.fromkeys(SourceStatus.__dataclass_fields__)
    fields |= {"name": name, "tables": found, "readers": [ReaderStatus("reader nightly", "0/8", None)]}
    return SourceStatus(**fields)


STATUS = HomeStatus(1, "home", None, [source("shop", "orders", "order_lines", "customers"), source("bank", "orders")])


@pytest.mark.parametrize(
    ("like", "names"),
    [
        (None, ["shop.orders", "shop.order_lines", "shop.customers", "bank.orders"]),
        ("ord%", ["shop.orders", "shop.order_lines", "bank.orders"]),
        ("shop.%", ["shop.orders", "shop.order_lines", "shop.customers"]),
        ("order_", ["shop.orders", "bank.orders"]),
        ("%", ["shop.orders", "shop.order_lines", "shop.customers", "bank.orders"]),
        ("orders.", []),
        ("ORDERS", []),
    ],
)
def test_pattern_selects_names(like: str | None, names: list[str]) -> None:
    assert [row[0] for row in matching(show_tables(STATUS), like).rows] == names


def test_pattern_of_sources() -> None:
    assert [row[0] for row in matching(show_sources(STATUS), "b%k").rows] == ["bank"]


def test_readers_of_all_sources_or_of_one() -> None:
    assert show_readers(STATUS).columns == ("name", "source", "position", "expires")
    assert [row[:2] for row in show_readers(STATUS).rows] == [("reader nightly", "shop"), ("reader nightly", "bank")]
    assert [row[1] for row in show_readers(STATUS, "bank").rows] == ["bank"]


@pytest.mark.parametrize("name", STATUS_TABLES)
def test_tables_of_the_status_have_types_with_and_without_rows(name: str) -> None:
    table = status_table(name, STATUS)
    assert table.column_names == list(STATUS_TABLES[name](STATUS).columns)
    assert set(table.schema.types) <= {pa.string(), pa.int64()}
    assert table.to_pylist() == [
        dict(zip(table.column_names, row, strict=True)) for row in STATUS_TABLES[name](STATUS).rows
    ]


def test_name_of_the_status_is_reserved() -> None:
    with pytest.raises(UsageError, match="reserved"):
        check_name("penstock")
