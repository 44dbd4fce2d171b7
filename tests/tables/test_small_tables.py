"""Small live tables read in this process: which tables are small, and when a base table is read again.

That their rows equal the model, for Delta tables that Spark wrote, is shown by `tests.tables.test_histories`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.changelog.chunks import ORDERS, Row, chunk, inserted

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.tables import small_tables
from penstock.tables.arrow.fold import KeyedNet, KeylessNet, fold_net
from penstock.tables.base_state import State
from penstock.tables.small_tables import SmallTables

Rows = list[tuple[int, str]]
AT, UPTO = State(0, Lsn(10), ORDERS), Lsn(30)


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    """Return a log in which row 1 was deleted at 20, and row 30000 was inserted at 30."""
    found = SqliteLog(tmp_path / "log.db")
    found.create(Lsn(10))
    with closing(found.writer()) as writer:
        writer.define(ORDERS, Lsn(10))
        writer.publish([chunk(ORDERS, [Row(20, 0, Image.DELETED, (1, "one")), inserted(30)])], Lsn(30))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a base table with the rows 1 and 2."""
    return written(tmp_path / "orders", "one", "two")


def written(path: Path, *names: str) -> Path:
    rows = pa.table({"id": range(1, len(names) + 1), "name": names}, ORDERS.columns)
    write_deltalake(str(path), rows)
    return path


def read(
    small: SmallTables, log: ChangeLog, path: Path, upto: Lsn = UPTO, at: State = AT
) -> list[tuple[int, str]] | None:
    found = small.rows(log, path, at, ORDERS, upto)
    if found is None:
        return None
    assert all(field.nullable for field in found.schema)
    return sorted((row["id"], row["name"]) for row in found.to_pylist())


def test_base_and_tail_at_each_position(log: ChangeLog, path: Path) -> None:
    small = SmallTables()
    assert read(small, log, path, Lsn(10)) == [(1, "one"), (2, "two")]
    assert read(small, log, path, Lsn(20)) == [(2, "two")]
    assert read(small, log, path) == [(2, "two"), (30000, "x")]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the versions of base tables that were read."""
    versions: list[int] = []
    original = small_tables._read

    def noted(path: Path, version: int, columns: pa.Schema) -> pa.Table | None:
        versions.append(version)
        return original(path, version, columns)

    monkeypatch.setattr(small_tables, "_read", noted)
    yield versions


def test_a_base_table_is_read_once_per_version(log: ChangeLog, path: Path, reads: list[int]) -> None:
    small = SmallTables()
    assert read(small, log, path) == read(small, log, path)
    assert reads == [0]
    write_deltalake(str(path), pa.table({"id": [3], "name": ["three"]}, ORDERS.columns), mode="append")
    assert read(small, log, path, at=State(1, Lsn(30), ORDERS)) == [(1, "one"), (2, "two"), (3, "three")]
    assert reads == [0, 1]


def test_an_earlier_position_is_read_from_the_base_table(log: ChangeLog, path: Path, reads: list[int]) -> None:
    small = SmallTables()
    assert read(small, log, path) == [(2, "two"), (30000, "x")]
    assert read(small, log, path, Lsn(10)) == [(1, "one"), (2, "two")]
    assert read(small, log, path) == [(2, "two"), (30000, "x")]
    assert reads == [0, 0], "the rows at the later position are kept"


def test_the_log_is_read_once(log: ChangeLog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, folds = SmallTables(), []

    def noted(images: pa.Table, schema: TableSchema) -> KeyedNet | KeylessNet:
        folds.append(len(images))
        return fold_net(images, schema)

    monkeypatch.setattr(small_tables, "fold_net", noted)
    for upto in (20, 20, 30, 30):
        read(small, log, path, Lsn(upto))
    assert [rows for rows in folds if rows] == [1, 1]


def test_a_table_that_was_created_again_is_read_again(log: ChangeLog, path: Path) -> None:
    small = SmallTables()
    assert read(small, log, path, Lsn(10)) == [(1, "one"), (2, "two")]
    shutil.rmtree(path)
    written(path, "first")
    assert read(small, log, path, Lsn(10)) == [(1, "first")]


@pytest.mark.parametrize(("limit", "value"), [("_ROWS", 1), ("_BYTES", 10)])
def test_a_larger_table_is_left_to_spark(
    log: ChangeLog, path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(small_tables, limit, value)
    small = SmallTables()
    assert read(small, log, path) is None
    assert read(small, log, path) is None
    assert reads == [0], "its size is looked at once per version"


def test_a_version_that_is_missing_is_left_to_spark(log: ChangeLog, path: Path) -> None:
    assert read(SmallTables(), log, path, at=State(7, Lsn(10), ORDERS)) is None
    next(path.glob("*.parquet")).unlink()
    assert read(SmallTables(), log, path) is None


def test_bases_are_kept_up_to_a_size(
    log: ChangeLog, tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = written(tmp_path / "a", "one"), written(tmp_path / "b", "one")
    small = SmallTables()
    read(small, log, first)
    read(small, log, second)
    assert read(small, log, first) == [(30000, "x")]
    assert len(reads) == 2
    monkeypatch.setattr(small_tables, "_KEPT_BYTES", 1)
    write_deltalake(str(first), pa.table({"id": [3], "name": ["three"]}, ORDERS.columns), mode="append")
    read(small, log, first, at=State(1, Lsn(30), ORDERS))
    read(small, log, second)
    assert len(reads) == 4
