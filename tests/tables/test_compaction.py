"""Compaction rewrites files without changing rows or position; vacuum removes only files that nothing requires."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.tables.model import KEYED, KEYLESS, History, plain, row, rows_frame
from tests.tables.test_base import follow, rows, small

from penstock.positions import Lsn
from penstock.spark.base_files import BaseFiles, read_base_file
from penstock.tables import compaction
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.compaction import GRACE_SECONDS, DeltaCompaction, log_days, vacuum_before

DAY = 86_400.0


def fragmented(spark: SparkSession, path: Path) -> tuple[DeltaBaseTable, History, State]:
    """Create a table with several small files and a deleted row."""
    table, history, end = small(spark, path, "a", "b")
    for keys in ("cd", "ef"):
        for key in keys:
            history.insert(row(1, key))
        begin, end = end, history.commit()
        follow(spark, table, history, begin, end)
    history.update(history.find(1, "c"), {"n": 7})
    history.delete(history.find(1, "a"))
    begin, end = end, history.commit()
    follow(spark, table, history, begin, end)
    state = table.state()
    assert state is not None
    return table, history, state


@pytest.mark.deep
def test_rewriting_changes_no_row_and_no_position(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, history, before = fragmented(spark, tmp_path)
    compactor = DeltaCompaction(spark, table)
    assert compactor.rewrite(before) == 0, "a few small files are not compacted"
    monkeypatch.setattr(compaction, "_MANY_SMALL", 2)
    files = compactor.files()
    assert sum(file.deleted for file in files) == 1
    assert all(file.low is not None and file.high is not None for file in files)
    assert compactor.rewrite(before) == len(files)
    after = table.state()
    assert after == before._replace(version=before.version + 1)
    (file,) = compactor.files()
    assert (file.rows, file.deleted) == (5, 0)
    assert rows(table) == plain(history.states[before.position])
    assert table.versions()[:2] == [(after.version, after.position), (before.version, before.position)]
    assert plain(table.at(before.version).collect()) == plain(history.states[before.position])
    read = [
        batch for file in BaseFiles.at(table.path, after.version).files for batch in read_base_file(file, KEYED.columns)
    ]
    assert pa.Table.from_batches(read).num_rows == 5
    history.delete(history.find(1, "b"))
    end = history.commit()
    follow(spark, table, history, int(before.position), end)
    assert rows(table) == plain(history.states[end])


def test_keyless_table_is_compacted(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_MANY_SMALL", 1)
    table = DeltaBaseTable(spark, str(tmp_path / "base"), KEYLESS)
    table.create(rows_frame(spark, [row(1, "a")]).coalesce(1), Lsn(1))
    table.append(rows_frame(spark, [row(1, "a"), row(2, "b")]).coalesce(1), Lsn(2))
    state = table.state()
    assert state is not None
    assert DeltaCompaction(spark, table).rewrite(state) == 2
    assert rows(table) == plain([row(1, "a"), row(1, "a"), row(2, "b")])


def test_vacuum_keeps_files_of_required_versions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, history, before = fragmented(spark, tmp_path)
    monkeypatch.setattr(compaction, "_MANY_SMALL", 2)
    compactor = DeltaCompaction(spark, table)
    compactor.rewrite(before)
    files = set(Path(table.path).rglob("*.parquet"))
    assert compactor.vacuum(before.version)
    assert set(Path(table.path).rglob("*.parquet")) == files, "all files were replaced within the last hour"
    monkeypatch.setattr(compaction, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "_CLOCKS_SECONDS", 0.0)
    compactor.vacuum(before.version)
    assert plain(table.at(before.version).collect()) == plain(history.states[before.position])
    state = table.state()
    assert state is not None
    compactor.vacuum(state.version)
    left = set(Path(table.path).rglob("*.parquet"))
    assert len(left) < len(files)
    assert rows(table) == plain(history.states[before.position])
    assert state.position == before.position, "the log retention was set in a commit without a position"


def test_vacuum_does_nothing_if_the_commit_of_the_version_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    table, _, _ = small(spark, tmp_path, "a")
    assert not DeltaCompaction(spark, table).vacuum(99)


def test_vacuum_keeps_files_that_a_required_version_or_a_reader_may_use() -> None:
    now = time.time()
    assert vacuum_before(now, now) <= now - GRACE_SECONDS, (
        "newest version: files replaced within the last hour are kept"
    )
    week = now - 7 * DAY
    assert week - 3600 <= vacuum_before(week, now) < week, "old version: files replaced after it are kept"


def test_log_retention_covers_the_oldest_required_version() -> None:
    now = time.time()
    assert log_days(0, now - 3600, now) == 4, "not set before"
    assert log_days(4, now - DAY, now) == 4
    assert log_days(4, now - 3.5 * DAY, now) == 10, "a lease retains history"
    assert log_days(10, now - 8.9 * DAY, now) == 10
    assert log_days(100, now - DAY, now) == 4, "the lease was released"
    for age in range(100):
        days = log_days(4, now - age * DAY, now)
        assert days > age
        assert log_days(days, now - age * DAY, now) == days
