"""Key bounds: all keys are within them, and files outside of them are not opened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.model import COUNT, GONE, TableName, TableSchema
from penstock.positions import Lsn
from penstock.spark.images import spark_schema
from penstock.tables.base import DeltaBaseTable
from penstock.tables.bounds import _widened, has_bounds, intervals
from penstock.tables.contents import Contents
from penstock.tables.parquet_files import indexed_columns, write_file

KEYS = [
    (pa.int16(), [1, 2], [100, 101]),
    (pa.int64(), [-(2**62), 5], [2**61, 2**62]),
    (pa.decimal128(12, 2), [Decimal("-7.25"), Decimal("0.00")], [Decimal("99999.99"), Decimal("100000.00")]),
    (pa.date32(), [date(1, 1, 1), date(1500, 2, 28)], [date(2026, 1, 1), date(9999, 12, 31)]),
    (
        pa.timestamp("us"),
        [datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("1582-10-10")],
        [datetime.fromisoformat("2026-01-02T03:04:05.678901")],
    ),
    (
        pa.timestamp("us", "UTC"),
        [datetime(1900, 1, 1, tzinfo=UTC)],
        [datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    ),
    (pa.string(), ["", "a'b", "a\\b"], ["é", "zz", "\U0010ffff" * 40]),
]
DAY = 86_400_000_000
REACH = {pa.date32(): (-719_162, 2_932_896), pa.timestamp("us", "UTC"): (-719_162 * DAY, 2_932_897 * DAY - 1)}
EXACT = Contents(unchanged=False, moved=False)


def frame(spark: SparkSession, schema: TableSchema, rows: list[dict[str, Any]]) -> Any:
    table = pa.Table.from_pylist(rows, schema.columns)
    return spark.createDataFrame(table, spark_schema(schema.columns))


def two_files(spark: SparkSession, path: Path, kind: pa.DataType, low: list[Any], high: list[Any]) -> DeltaBaseTable:
    """Create a table with a file of low keys and a file of high keys."""
    schema = TableSchema(TableName("s", "t"), pa.schema([("k", kind), ("n", pa.int64())]), ("k",))
    table = DeltaBaseTable(spark, str(path / "base"), schema)
    table.create(frame(spark, schema, [{"k": key, "n": 0} for key in low]).coalesce(1), Lsn(1))
    table.append(frame(spark, schema, [{"k": key, "n": 0} for key in high]).coalesce(1), Lsn(2))
    return table


@contextmanager
def without_first_file(table: DeltaBaseTable) -> Iterator[None]:
    """Hide the file of the first commit meanwhile, so that opening it fails."""
    commit = (Path(table.path) / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    (added,) = [action["add"]["path"] for action in map(json.loads, commit) if "add" in action]
    path = Path(table.path) / added
    path.rename(path.with_suffix(".gone"))
    yield
    path.with_suffix(".gone").rename(path)


def net_of(spark: SparkSession, table: DeltaBaseTable, keys: list[Any]) -> Any:
    """Return net changes that update the rows with these keys."""
    return frame(spark, table.schema, [{"k": key, "n": 1} for key in keys]).withColumn(GONE, F.lit(False))


FAST = (pa.string(),)  # and integers, in the next test


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [pytest.param(*key, id=str(key[0]), marks=() if key[0] in FAST else pytest.mark.deep) for key in KEYS],
)
def test_files_without_the_keys_are_not_opened(
    spark: SparkSession, tmp_path: Path, kind: pa.DataType, low: list[Any], high: list[Any]
) -> None:
    table = two_files(spark, tmp_path, kind, low, high)
    with without_first_file(table):
        table.merge(net_of(spark, table, high), Lsn(3), EXACT)
        with pytest.raises((PySparkException, Py4JError)):
            table.merge(net_of(spark, table, low), Lsn(4), EXACT)
    assert table.position() == 3
    assert sorted(row.n for row in table.current().collect()) == [0] * len(low) + [1] * len(high)


def test_a_few_old_keys_do_not_span_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = two_files(spark, tmp_path, pa.int64(), [1000, 2000], [1, 9000])
    with without_first_file(table):
        table.merge(net_of(spark, table, [1, 8999, 9000]), Lsn(3), EXACT)
        with pytest.raises((PySparkException, Py4JError)):
            table.merge(net_of(spark, table, [1, 1500, 9000]), Lsn(4), EXACT)


def test_null_in_a_keyless_table_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """A null is outside of all bounds, but is found."""
    schema = TableSchema(TableName("s", "t"), pa.schema([("k", pa.int64()), ("n", pa.int64())]), ())
    table = DeltaBaseTable(spark, str(tmp_path / "base"), schema)
    table.create(frame(spark, schema, [{"k": 1, "n": 0}, {"k": 2, "n": 0}]).coalesce(1), Lsn(1))
    table.append(frame(spark, schema, [{"k": 8, "n": 0}, {"k": 9, "n": 0}, {"n": 0}]).coalesce(1), Lsn(2))
    fewer = frame(spark, schema, [{"k": 9, "n": 0}, {"n": 0}]).withColumn(COUNT, F.lit(-1))
    with without_first_file(table):
        table.merge(fewer, Lsn(3), EXACT)
    assert sorted(row.k for row in table.current().collect()) == [1, 2, 8]


@pytest.mark.deep
def test_key_after_many_columns_has_statistics(spark: SparkSession, tmp_path: Path) -> None:
    columns = [(f"c{n}", pa.struct([("a", pa.int64()), ("b", pa.int64())])) for n in range(20)]
    schema = TableSchema(TableName("s", "t"), pa.schema([*columns, ("k", pa.int64())]), ("k",))
    table = DeltaBaseTable(spark, str(tmp_path / "base"), schema)
    table.create(frame(spark, schema, [{"k": 7}]).coalesce(1), Lsn(1))
    commit = (tmp_path / "base" / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    (stats,) = [json.loads(action["add"]["stats"]) for action in map(json.loads, commit) if "add" in action]
    assert (stats["minValues"]["k"], stats["maxValues"]["k"]) == (7, 7)
    batch = pa.RecordBatch.from_pylist([{"k": 7}], schema.columns)
    written = write_file(tmp_path, schema.columns, [batch], indexed_columns(schema.columns, schema.key))
    assert written.add is not None
    assert json.loads(json.loads(written.add)["add"]["stats"])["maxValues"] == {"k": 7}


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.bool_(), pa.list_(pa.int64())], ids=str)
def test_types_without_bounds(kind: pa.DataType) -> None:
    assert not has_bounds(kind)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_intervals_cover_all_numbers(values: list[int]) -> None:
    assert_covered(pa.chunked_array([pa.array(values, pa.int64())]), sorted(set(values)))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)))
def test_intervals_cover_all_strings(values: list[str]) -> None:
    assert_covered(
        pa.chunked_array([pa.array(values, pa.string())]), sorted(set(values), key=lambda text: text.encode())
    )


def assert_covered(values: pa.ChunkedArray, ordered: list[Any]) -> None:
    """Assert that each interval begins and ends with a value, and that together they cover all values in order."""
    found = [(low.as_py(), high.as_py()) for low, high in intervals(values)]
    places = [(ordered.index(low), ordered.index(high)) for low, high in found]
    covered = [place for low, high in places for place in range(low, high + 1)]
    assert covered == list(range(len(ordered)))
    assert len(found) <= 16


@pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us", "UTC")], ids=str)
@given(data=st.data())
def test_rounded_bounds_contain_the_keys(kind: pa.DataType, data: st.DataObject) -> None:
    """Rounded bounds are not much wider, and stay within the range of the type."""
    least, most = REACH.get(kind, (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1))
    low, high = sorted(data.draw(st.tuples(*[st.integers(least, most)] * 2)))
    number = pa.int32() if kind == pa.date32() else pa.int64() if pa.types.is_timestamp(kind) else kind
    first, last = (
        pa.array([end.as_py()], kind).view(number)[0].as_py()
        for end in _widened((pa.scalar(low, kind), pa.scalar(high, kind)))
    )
    assert least <= first <= low <= high <= last <= most
    assert max(low - first, last - high) <= (high - low) / 8


def test_consecutive_batches_mostly_have_the_same_bounds() -> None:
    ends = [(950_000, 1_000_000 + 100 * batch) for batch in range(100)]
    found = {tuple(end.as_py() for end in _widened((pa.scalar(low), pa.scalar(high)))) for low, high in ends}
    assert len(found) <= 5


def test_scattered_keys_form_one_interval() -> None:
    assert len(intervals(pa.chunked_array([np.random.default_rng(1).integers(0, 10**7, 10_000)]))) == 1
