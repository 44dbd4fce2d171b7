"""Parquet files of a Delta table: all rows, correct statistics, no leftovers, and bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark.base_files import BaseFile, _row_groups
from penstock.tables import parquet_files
from penstock.tables.parquet_files import write_file

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("body", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("f", pa.float64()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.int64())),
        ("pair", pa.struct([("id", pa.int64())])),
        ("none", pa.int32()),
    ]
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


def batch(*ids: int | None) -> pa.RecordBatch:
    rows = [
        {
            "id": n,
            "body": "b",
            "day": date(1500, 1, 1),
            "at": AT,
            "local": AT.replace(tzinfo=None),
            "f": float("nan"),
            "ok": True,
            "tags": [n],
            "pair": {"id": 99},
            "none": None,
        }
        for n in ids
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def added(folder: Path, *batches: pa.RecordBatch) -> tuple[dict[str, Any], dict[str, Any]]:
    written = write_file(folder, SCHEMA, batches)
    assert written.add is not None
    add = json.loads(written.add)["add"]
    return add, json.loads(add["stats"])


def test_rows_and_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_GROUP_BYTES", 1)  # a row group per batch
    add, stats = added(tmp_path, batch(5, None), batch(-3, 7), batch(None))
    path = tmp_path / add["path"]
    assert (add["size"], add["dataChange"], add["partitionValues"]) == (path.stat().st_size, True, {})
    table = pq.read_table(path)
    assert pq.read_metadata(path).num_row_groups == 3
    assert table.column("id").to_pylist() == [5, None, -3, 7, None]
    assert table.schema.equals(SCHEMA)
    assert stats["numRecords"] == 5
    assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (-3, 7)
    assert (stats["minValues"]["day"], stats["maxValues"]["day"]) == ("1500-01-01", "1500-01-01")
    assert (stats["minValues"]["at"], stats["maxValues"]["at"]) == (
        "2026-01-02T03:04:05.678Z",
        "2026-01-02T03:04:05.679Z",
    )
    assert (stats["minValues"]["body"], stats["maxValues"]["body"]) == ("b", "b")
    assert stats["maxValues"]["local"] == "2026-01-02T03:04:05.679"
    assert {"f", "ok", "tags", "pair", "none"}.isdisjoint(stats["minValues"])
    assert stats["nullCount"] == {"id": 2, "none": 5, **dict.fromkeys(["body", "day", "at", "local", "f", "ok"], 0)}


@pytest.mark.parametrize(
    ("last", "kept"), [("z" * 33, 33), ("\U0010ffff" * 40, 40)], ids=["usual", "no greater string"]
)
def test_long_strings_are_truncated_in_statistics(tmp_path: Path, last: str, kept: int) -> None:
    """No string is outside of its bounds, in byte order."""
    schema = pa.schema([("body", pa.string())])
    texts = ["b" * 40, "c", last]
    written = write_file(tmp_path, schema, [pa.RecordBatch.from_pydict({"body": texts}, schema)])
    assert written.add is not None
    stats = json.loads(json.loads(written.add)["add"]["stats"])
    low, high = stats["minValues"]["body"], stats["maxValues"]["body"]
    assert (len(low), len(high)) == (32, kept)
    assert all(low.encode() <= text.encode() <= high.encode() for text in texts)


DAY = 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
EDGES = {
    pa.date32(): (FIRST_DAY, LAST_DAY),
    pa.timestamp("us"): (FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1),
    pa.timestamp("us", "UTC"): (FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1),
}
BEYOND = {
    pa.date32(): (-(1 << 31), (1 << 31) - 1),
    **dict.fromkeys([pa.timestamp("us"), pa.timestamp("us", "UTC")], (-(1 << 63), (1 << 63) - 1)),
}


def numbers(kind: pa.DataType, values: list[int]) -> pa.Array:
    return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)


def near(*ends: int) -> st.SearchStrategy[int]:
    """Return a strategy for numbers between the ends, often at or next to one of them."""
    low, high = min(ends), max(ends)
    beside = [st.integers(max(low, end - 2000), min(high, end + 2000)) for end in ends]
    return st.one_of(*beside, st.integers(low, high))


def statistics_of(folder: Path, kind: pa.DataType, values: list[int]) -> tuple[Path, dict[str, Any]]:
    schema = pa.schema([("v", kind)])
    written = write_file(folder, schema, [pa.RecordBatch.from_arrays([numbers(kind, values)], schema=schema)])
    assert written.add is not None
    add = json.loads(written.add)["add"]
    return folder / add["path"], json.loads(add["stats"])


def number_of(kind: pa.DataType, bound: str) -> int:
    """Return the number that a bound represents."""
    if kind == pa.date32():
        return (date.fromisoformat(bound) - date(1970, 1, 1)).days
    return (datetime.fromisoformat(bound).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )


@pytest.mark.parametrize("kind", EDGES, ids=str)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_timestamp_is_outside_of_its_bounds(tmp_path: Path, kind: pa.DataType, data: st.DataObject) -> None:
    """9999-12-31 23:59:59.999999 means "forever" in many tables: it cannot be rounded up, and has no bound."""
    values = data.draw(st.lists(near(*EDGES[kind], 0), min_size=1, max_size=4))
    path, stats = statistics_of(tmp_path, kind, values)
    least, most = stats["minValues"].get("v"), stats["maxValues"].get("v")
    assert least is not None and number_of(kind, least) <= min(values)
    assert max(values) > EDGES[kind][1] - 999 if most is None else max(values) <= number_of(kind, most)
    assert pq.read_table(path).column("v").combine_chunks() == numbers(kind, values)


@pytest.mark.parametrize("kind", BEYOND, ids=str)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_dates_outside_of_the_calendar_have_no_bounds(tmp_path: Path, kind: pa.DataType, data: st.DataObject) -> None:
    """A filter on such a value skips no row group."""
    values = data.draw(st.lists(near(*EDGES[kind], *BEYOND[kind], 0), min_size=1, max_size=4))
    path, stats = statistics_of(tmp_path, kind, values)
    inside = all(EDGES[kind][0] <= value <= EDGES[kind][1] for value in values)
    assert ("v" in stats["minValues"]) == inside
    assert stats["nullCount"] == {"v": 0}
    file = BaseFile(str(path), len(values), 0, pa.schema([("v", kind)]))
    with pq.ParquetFile(path) as parquet:
        for value in numbers(kind, values):
            assert _row_groups(parquet, file, pc.field("v") == value) == [0]


@pytest.mark.parametrize("digits", [9, 18, 38])
def test_filters_on_the_largest_decimals_skip_no_row_group(tmp_path: Path, digits: int) -> None:
    schema = pa.schema([("v", pa.decimal128(digits, 2))])
    ends = [Decimal(f"{sign}{'9' * (digits - 2)}.99") for sign in ("-", "")]
    written = write_file(tmp_path, schema, [pa.RecordBatch.from_pydict({"v": ends}, schema)])
    assert written.add is not None
    path = tmp_path / json.loads(written.add)["add"]["path"]
    with pq.ParquetFile(path) as parquet:
        for end in ends:
            where = pc.field("v") == pa.scalar(end, schema.field(0).type)
            assert _row_groups(parquet, BaseFile(str(path), 2, 0, schema), where) == [0]


def test_no_file_is_written_without_rows(tmp_path: Path) -> None:
    assert write_file(tmp_path, SCHEMA, []).add is None
    assert list(tmp_path.iterdir()) == []


def test_incomplete_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_GROUP_BYTES", 1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        assert list(tmp_path.iterdir())
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write_file(tmp_path, SCHEMA, failing())
    assert list(tmp_path.iterdir()) == []


PEAK = """
import os, sys
from pathlib import Path
import pyarrow as pa
from penstock.tables.parquet_files import write_file
schema = pa.schema([("body", pa.binary())])
def batches(count):
    for _ in range(count):
        yield pa.RecordBatch.from_arrays([pa.array([os.urandom(1 << 20) for _ in range(8)], pa.binary())], schema)
write_file(Path(sys.argv[1]), schema, batches(int(sys.argv[2])))
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """The 800 MB are incompressible: keeping more than a row group in memory would be measurable."""
    few, many = (
        int(subprocess.run([sys.executable, "-c", PEAK, tmp_path, n], capture_output=True, check=True).stdout)
        for n in ("20", "100")
    )
    assert many < few + 150
