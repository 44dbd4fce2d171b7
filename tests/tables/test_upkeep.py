"""Worn files are written anew without a change of row or position; what is removed is needed by nobody."""

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
from penstock.tables.compaction import GRACE_SECONDS, Upkeep, log_days, vacuum_before

DAY = 86_400.0


def worn(spark: SparkSession, path: Path) -> tuple[DeltaBaseTable, History, State]:
    """A table of several small files, with a deleted row."""
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


def test_rewriting_changes_no_row_and_no_position(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, history, before = worn(spark, tmp_path)
    keeping = Upkeep(spark, table)
    assert keeping.rewrite(before) == 0, "few small files are no harm"
    monkeypatch.setattr(compaction, "_MANY_SMALL", 2)
    held = keeping.files()
    assert sum(file.deleted for file in held) == 1
    assert all(file.low is not None and file.high is not None for file in held)
    assert keeping.rewrite(before) == len(held)
    after = table.state()
    assert after == before._replace(version=before.version + 1)
    (file,) = keeping.files()
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


def test_a_table_without_a_key_is_put_together_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_MANY_SMALL", 1)
    table = DeltaBaseTable(spark, str(tmp_path / "base"), KEYLESS)
    table.create(rows_frame(spark, [row(1, "a")]).coalesce(1), Lsn(1))
    table.append(rows_frame(spark, [row(1, "a"), row(2, "b")]).coalesce(1), Lsn(2))
    state = table.state()
    assert state is not None
    assert Upkeep(spark, table).rewrite(state) == 2
    assert rows(table) == plain([row(1, "a"), row(1, "a"), row(2, "b")])


def test_only_what_no_needed_version_holds_is_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, history, before = worn(spark, tmp_path)
    monkeypatch.setattr(compaction, "_MANY_SMALL", 2)
    keeping = Upkeep(spark, table)
    keeping.rewrite(before)
    files = set(Path(table.path).rglob("*.parquet"))
    assert keeping.vacuum(before.version)
    assert set(Path(table.path).rglob("*.parquet")) == files, "all of it left the table within the hour"
    monkeypatch.setattr(compaction, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "_CLOCKS_SECONDS", 0.0)
    keeping.vacuum(before.version)
    assert plain(table.at(before.version).collect()) == plain(history.states[before.position])
    state = table.state()
    assert state is not None
    keeping.vacuum(state.version)
    left = set(Path(table.path).rglob("*.parquet"))
    assert len(left) < len(files)
    assert rows(table) == plain(history.states[before.position])
    assert state.position == before.position, "how long the log is kept was set, in a commit without a position"


def test_a_version_whose_commit_is_gone_keeps_everything(spark: SparkSession, tmp_path: Path) -> None:
    table, _, _ = small(spark, tmp_path, "a")
    assert not Upkeep(spark, table).vacuum(99)


def test_nothing_goes_that_a_needed_version_or_a_plain_reader_may_read() -> None:
    now = time.time()
    assert vacuum_before(now, now) <= now - GRACE_SECONDS, "of the newest version: what left within the hour stays"
    week = now - 7 * DAY
    assert week - 3600 <= vacuum_before(week, now) < week, "of an old one: nothing that left after it"


def test_the_log_is_kept_for_as_long_as_its_oldest_needed_version() -> None:
    now = time.time()
    assert log_days(0, now - 3600, now) == 4, "it was never set"
    assert log_days(4, now - DAY, now) == 4
    assert log_days(4, now - 3.5 * DAY, now) == 10, "somebody holds history"
    assert log_days(10, now - 8.9 * DAY, now) == 10
    assert log_days(100, now - DAY, now) == 4, "and has let go of it"
    for age in range(100):
        days = log_days(4, now - age * DAY, now)
        assert days > age
        assert log_days(days, now - age * DAY, now) == days
