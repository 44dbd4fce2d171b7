"""Columns of sources that produce rows: converted exactly or rejected."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.sources.row_tables import RowTable, fitted, plain

EVENTS = TableName("events", "events")


@pytest.mark.parametrize(
    ("found", "stored"),
    [
        (pa.int32(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.decimal256(38, 2), pa.decimal128(38, 2)),
        (pa.list_(pa.uint8()), pa.list_(pa.int16())),
        (pa.struct([("a", pa.large_binary())]), pa.struct([("a", pa.binary())])),
        (pa.map_(pa.string(), pa.uint16()), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_types_are_converted_to_portable_types(found: pa.DataType, stored: pa.DataType) -> None:
    assert plain(pa.schema([("c", found)])).field("c").type == stored


@pytest.mark.parametrize("found", [pa.null(), pa.time64("us"), pa.duration("s"), pa.decimal256(50, 2), pa.struct([])])
def test_unsupported_types_are_rejected(found: pa.DataType) -> None:
    with pytest.raises(DefiniteError, match='column "c" has the unsupported type'):
        plain(pa.schema([("c", found)]))


def test_rows_are_converted_exactly_or_rejected() -> None:
    columns = pa.schema([("n", pa.decimal128(20, 0)), ("t", pa.timestamp("us")), ("new", pa.string())])
    rows = pa.record_batch({"t": pa.array([1000], pa.timestamp("ns")), "n": pa.array([2**64 - 1], pa.uint64())})
    (row,) = fitted(rows, columns).to_pylist()
    assert row["n"] == Decimal(2**64 - 1)
    assert row["new"] is None
    with pytest.raises(pa.ArrowInvalid):
        fitted(pa.record_batch({"t": pa.array([1001], pa.timestamp("ns"))}), columns)


def test_table_round_trips_through_json() -> None:
    table = RowTable.of(EVENTS, pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]), ("id",))
    read = RowTable.model_validate_json(table.model_dump_json())
    assert read.table_schema() == table.table_schema()
    assert read.table_schema().key == ("id",)


@pytest.mark.parametrize(
    ("columns", "key", "why"),
    [
        ([], (), "no columns"),
        ([("a", pa.int64()), ("A", pa.int64())], (), '2 columns "a"'),
        ([("_penstock_x", pa.int64())], (), "reserved name"),
        ([("a", pa.int64())], ("b",), '"b" does not exist'),
        ([("a", pa.list_(pa.int64()))], ("a",), "cannot be part of the key"),
    ],
)
def test_invalid_tables_are_rejected(columns: list[tuple[str, pa.DataType]], key: tuple[str, ...], why: str) -> None:
    with pytest.raises(DefiniteError, match=why):
        RowTable.of(EVENTS, pa.schema(columns), key)
