"""Columns of kinds that make rows themselves: what they become, exactly or not at all."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.sources.row_tables import RowTable, fitted, plain

EVENTS = TableName("events", "events")


@pytest.mark.parametrize(
    ("found", "kept"),
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
def test_types_become_those_that_hold_everywhere(found: pa.DataType, kept: pa.DataType) -> None:
    assert plain(pa.schema([("c", found)])).field("c").type == kept


@pytest.mark.parametrize("found", [pa.null(), pa.time64("us"), pa.duration("s"), pa.decimal256(50, 2), pa.struct([])])
def test_types_that_nothing_holds_are_refused(found: pa.DataType) -> None:
    with pytest.raises(DefiniteError, match="the column c has the type"):
        plain(pa.schema([("c", found)]))


def test_rows_fit_exactly_or_not_at_all() -> None:
    columns = pa.schema([("n", pa.decimal128(20, 0)), ("t", pa.timestamp("us")), ("new", pa.string())])
    rows = pa.record_batch({"t": pa.array([1000], pa.timestamp("ns")), "n": pa.array([2**64 - 1], pa.uint64())})
    (row,) = fitted(rows, columns).to_pylist()
    assert row["n"] == Decimal(2**64 - 1)
    assert row["new"] is None
    with pytest.raises(pa.ArrowInvalid):
        fitted(pa.record_batch({"t": pa.array([1001], pa.timestamp("ns"))}), columns)


def test_a_table_is_what_was_stored_of_it() -> None:
    made = RowTable.of(EVENTS, pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]), ("id",))
    read = RowTable.model_validate_json(made.model_dump_json())
    assert read.table_schema() == made.table_schema()
    assert read.table_schema().key == ("id",)


@pytest.mark.parametrize(
    ("columns", "key", "why"),
    [
        ([], (), "no columns"),
        ([("a", pa.int64()), ("A", pa.int64())], (), "2 columns a"),
        ([("_gone", pa.int64())], (), "a name of ours"),
        ([("a", pa.int64())], ("b",), "has no column b"),
        ([("a", pa.list_(pa.int64()))], ("a",), "cannot be in its key"),
    ],
)
def test_tables_that_cannot_be(columns: list[tuple[str, pa.DataType]], key: tuple[str, ...], why: str) -> None:
    with pytest.raises(DefiniteError, match=why):
        RowTable.of(EVENTS, pa.schema(columns), key)
