"""Files of a Delta table: all rows, true statistics, nothing left behind, and bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


@pytest.mark.parametrize(("last", "kept"), [("z" * 33, 33), ("\U0010ffff" * 40, 40)], ids=["usual", "no greater one"])
def test_long_texts_are_cut_off_in_statistics(tmp_path: Path, last: str, kept: int) -> None:
    """No text lies outside of its bounds, in the order of bytes."""
    schema = pa.schema([("body", pa.string())])
    texts = ["b" * 40, "c", last]
    written = write_file(tmp_path, schema, [pa.RecordBatch.from_pydict({"body": texts}, schema)])
    assert written.add is not None
    stats = json.loads(json.loads(written.add)["add"]["stats"])
    low, high = stats["minValues"]["body"], stats["maxValues"]["body"]
    assert (len(low), len(high)) == (32, kept)
    assert all(low.encode() <= text.encode() <= high.encode() for text in texts)


def test_no_rows_no_file(tmp_path: Path) -> None:
    assert write_file(tmp_path, SCHEMA, []).add is None
    assert list(tmp_path.iterdir()) == []


def test_what_was_begun_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_GROUP_BYTES", 1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        assert list(tmp_path.iterdir())
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write_file(tmp_path, SCHEMA, broken())
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
    """Of 800 MB nothing can be compressed: it would show, were more of it kept than a row group."""
    few, many = (
        int(subprocess.run([sys.executable, "-c", PEAK, tmp_path, n], capture_output=True, check=True).stdout)
        for n in ("20", "100")
    )
    assert many < few + 150
