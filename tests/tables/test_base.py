"""A Delta base table with a position: merges, replays, recovery after a crash, older versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.tables.model import (
    COLUMNS,
    KEYED,
    KEYLESS,
    History,
    plain,
    random_history,
    random_keyless_history,
    row,
    rows_frame,
)

from penstock.errors import DefiniteError, TableError
from penstock.model import TableName, TableSchema, with_missing
from penstock.positions import Lsn
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.columns import column
from penstock.tables.contents import Contents, survey
from penstock.tables.fold import fold


def follow(
    spark: SparkSession, table: DeltaBaseTable, history: History, low: int, high: int, known: bool = True
) -> None:
    """Merge (low, high]; with `known`, use the contents found by a survey of the range."""
    images = history.frame(spark, low, high)
    found = survey(images)
    contents = found if known else Contents(truncated=found.truncated)
    table.merge(fold(images, table.schema, contents), Lsn(high), contents)


def rows(table: DeltaBaseTable) -> object:
    version = table.version()
    assert version is not None
    return plain(table.at(version).collect())


def small(spark: SparkSession, path: Path, *keys: str) -> tuple[DeltaBaseTable, History, int]:
    """Create a base table with a row for each of `keys`."""
    history = History()
    for key in keys:
        history.insert(row(1, key, 0, f"body {key}", key.encode()))
    base = history.commit()
    table = DeltaBaseTable(spark, str(path / "base"), KEYED)
    table.create(history.base(spark, base).coalesce(1), Lsn(base))
    return table, history, base


@pytest.mark.deep
@pytest.mark.parametrize(("seed", "full", "truncate"), [(11, False, False), (12, True, True)])
def test_merging_in_steps(spark: SparkSession, tmp_path: Path, seed: int, full: bool, truncate: bool) -> None:
    history = random_history(seed, full=full, truncate=truncate, transactions=12)
    positions = sorted(history.states)
    table = DeltaBaseTable(spark, str(tmp_path / "base"), KEYED)
    table.create(history.base(spark, positions[1]), Lsn(positions[1]))
    for number, (low, high) in enumerate(zip(positions[1:-3:3], positions[4::3], strict=True)):
        follow(spark, table, history, low, high, known=number % 2 == 0)
        assert rows(table) == plain(history.states[high])
        assert table.position() == high


@pytest.mark.deep
def test_merging_a_keyless_table_in_steps(spark: SparkSession, tmp_path: Path) -> None:
    history = random_keyless_history(13)
    positions = sorted(history.states)
    table = DeltaBaseTable(spark, str(tmp_path / "base"), KEYLESS)
    table.create(history.base(spark, positions[0]), Lsn(positions[0]))
    for low, high in zip(positions[0:-6:6], positions[6::6], strict=True):
        follow(spark, table, history, low, high)
        assert rows(table) == plain(history.states[high])
    history.truncate()
    history.insert(row(9, "z"))
    history.insert(row(9, "z"))
    end = history.commit()
    follow(spark, table, history, positions[-1], end)
    history.insert(row(9, "z"))
    last = history.commit()
    follow(spark, table, history, end, last)
    assert rows(table) == plain(history.states[last])


@pytest.mark.deep
def test_unsent_values_keep_those_of_the_target(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a")
    history.update(history.find(1, "a"), {"n": 5}, [0, 4])
    end = history.commit()
    images = history.frame(spark, base)
    contents = survey(images)
    assert contents.unchanged and not contents.moved
    table.merge(fold(images, KEYED, contents), Lsn(end), contents)
    assert rows(table) == plain(history.states[end])


@pytest.mark.deep
def test_unsent_value_without_its_row_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a")
    table.create(history.base(spark, base).limit(0), Lsn(base))
    history.update(history.find(1, "a"), {"n": 5}, [0, 4])
    end = history.commit()
    for known in (True, False):
        with pytest.raises(TableError, match="RETRY TABLE") as caught:
            follow(spark, table, history, base, end, known)
        assert (caught.value.table, caught.value.lsn) == ("public.t", end)
    assert table.position() == base


@pytest.mark.deep
def test_replay_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a", "b")
    history.update(history.find(1, "a"), {"n": 1})
    first = history.commit()
    history.delete(history.find(1, "b"))
    second = history.commit()
    history.insert(row(1, "c"))
    third = history.commit()
    history.truncate()
    history.insert(row(1, "d"))
    fourth = history.commit()
    steps = [(base, first), (first, second), (second, third), (third, fourth)]
    for low, high in steps:
        follow(spark, table, history, low, high)
        before = table.state()
        again = DeltaBaseTable(spark, table.path, KEYED)
        follow(spark, again, history, low, high)
        assert again.state() == table.state() == before
        assert rows(table) == plain(history.states[high])
    follow(spark, table, history, *steps[0])
    assert rows(table) == plain(history.states[fourth])


def test_range_without_net_changes_advances_the_position(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a")
    history.insert(row(1, "b"))
    history.delete(history.find(1, "b"))
    end = history.commit()
    follow(spark, table, history, base, end)
    assert (table.position(), rows(table)) == (end, plain(history.states[end]))
    for position, contents in ((end + 1, Contents()), (end + 2, Contents(inserts_only=True))):
        table.merge(fold(history.frame(spark, end), KEYED, contents), Lsn(position), contents)
        assert table.position() == position


@pytest.mark.deep
def test_create_replaces_an_existing_table(spark: SparkSession, tmp_path: Path) -> None:
    """Also at a lower position: transaction versions of the old table must not make Delta skip later writes."""
    path = tmp_path / "base"
    path.mkdir()
    (path / "part-00000-of-a-dead-attempt.parquet").write_bytes(b"half a file")
    table = DeltaBaseTable(spark, str(path), KEYED)
    assert (table.position(), table.version(), table.state()) == (None, None, None)
    table.create(rows_frame(spark, [row(1, "a")]), Lsn(5000))
    table.append(rows_frame(spark, [row(1, "b")]), Lsn(6000))
    assert table.position() == 6000
    table.create(rows_frame(spark, [row(1, "x")]), Lsn(100))
    assert table.position() == 100
    table.append(rows_frame(spark, [row(1, "y")]), Lsn(200))
    assert table.position() == 200
    assert rows(table) == plain([row(1, "x"), row(1, "y")])
    assert table.versions() == [(3, 200), (2, 100)]


@pytest.mark.deep
def test_append_before_create_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DefiniteError, match="no base table"):
        DeltaBaseTable(spark, str(tmp_path / "base"), KEYED).append(rows_frame(spark, [row(1, "b")]), Lsn(6000))


@pytest.mark.deep
def test_older_versions_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a")
    positions = [base]
    for n in (1, 2, 3):
        history.update(history.find(1, "a"), {"n": n})
        positions.append(history.commit())
        follow(spark, table, history, positions[-2], positions[-1])
        if n == 2:
            spark.sql(f"OPTIMIZE delta.`{table.path}`")
    found = table.versions()
    assert [position for _, position in found] == positions[::-1]
    for version, position in found:
        assert plain(table.at(version).collect()) == plain(history.states[position])
    assert table.versions(limit=1) == found[:1]
    state = table.state()
    assert state is not None
    assert found[0] == state[:2]


def test_position_is_found_without_checksum_files(spark: SparkSession, tmp_path: Path) -> None:
    """As after a crash between a commit and the write of its checksum file."""
    table, _, base = small(spark, tmp_path, "a")
    table.append(rows_frame(spark, [row(1, "b")]), Lsn(base + 5))
    for checksum in (Path(table.path) / "_delta_log").glob("*.crc"):
        checksum.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert DeltaBaseTable(spark, table.path, KEYED).state() == State(1, Lsn(base + 5), KEYED)


ADDED = [
    ([pa.field("note", pa.string())], [None]),
    ([pa.field("a note; with (all)", pa.int32())], [None]),
    (
        [
            with_missing(pa.field("price", pa.decimal128(6, 2)), pa.array([Decimal("1.50")], pa.decimal128(6, 2))),
            with_missing(pa.field("tags", pa.list_(pa.string())), pa.array([["x", None]])),
            pa.field("note", pa.string()),
        ],
        [Decimal("1.50"), ["x", None], None],
    ),
]


@pytest.mark.parametrize(
    ("added", "values"), [*(pytest.param(*each, marks=pytest.mark.deep) for each in ADDED[:-1]), ADDED[-1]]
)
def test_columns_are_added(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: list[pa.Field], values: list[object]
) -> None:
    table, history, base = small(spark, tmp_path, "a", "b")
    history.update(history.find(1, "a"), {"n": 5})
    follow(spark, table, history, base, history.commit())
    before, position = rows(table), table.position()
    wider = TableSchema(KEYED.table, pa.schema([*KEYED.columns, *added]), KEYED.key)
    with monkeypatch.context() as crash, pytest.raises(InterruptedError):
        crash.setattr(table, "set_properties", fail_for("penstock.schema"))
        table.evolve(wider)
    state = DeltaBaseTable(spark, table.path, KEYED).state()
    assert state is not None
    assert (state.schema, state.position) == (KEYED, position), "after a crash in between, the old schema is valid"
    table.evolve(wider)
    state = table.state()
    assert state is not None
    assert (state.schema, state.position) == (wider, position)
    found = table.at(state.version)
    assert plain(found.select(*map(column, KEYED.columns.names)).collect()) == before
    names = [field.name for field in added]
    assert [[row[name] for name in names] for row in found.collect()] == [values] * 2


def fail_for(name: str) -> Callable[[Mapping[str, str]], None]:
    def fail(properties: Mapping[str, str]) -> None:
        if name in properties:
            raise InterruptedError

    return fail


def test_properties_and_comments(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaBaseTable(spark, str(tmp_path / "base"), KEYED)
    frame = rows_frame(spark, [row(1, "a")])
    properties = {"penstock.source": "shop", "delta.logRetentionDuration": "interval 90 days"}
    table.create(frame, Lsn(7), properties, comment="all of it", comments={"n": "a number", "a.key": "a 'key'"})
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table.path}`").collect()[0]
    assert detail["description"] == "all of it"
    expected = {**properties, "penstock.table": "public.t", "delta.enableDeletionVectors": "true"}
    assert expected.items() <= detail["properties"].items()
    comments = {field.name: field.metadata.get("comment") for field in table.at(0).schema}
    assert {name: text for name, text in comments.items() if text} == {"n": "a number", "a.key": "a 'key'"}
    assert detail["properties"]["delta.columnMapping.mode"] == "name"


def test_column_mapping_is_enabled_only_if_names_require_it(spark: SparkSession, tmp_path: Path) -> None:
    schema = TableSchema(TableName("s", "t"), pa.schema([("id", pa.int64())]), ("id",))
    table = DeltaBaseTable(spark, str(tmp_path / "base"), schema)
    table.create(spark.range(3), Lsn(1))
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table.path}`").collect()[0]
    assert "delta.columnMapping.mode" not in detail["properties"]


def test_merge_is_one_commit_with_its_position(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a", "b")
    history.delete(history.find(1, "b"))
    history.insert(row(1, "c"))
    end = history.commit()
    follow(spark, table, history, base, end)
    log = Path(table.path) / "_delta_log"
    assert len(list(log.glob("*.json"))) == 2
    actions = [json.loads(line) for line in (log / f"{1:020}.json").read_text().splitlines()]
    assert [action["txn"]["version"] for action in actions if "txn" in action] == [end]
    assert any("deletionVector" in action["add"] for action in actions if "add" in action)


def test_session_settings_are_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    table, history, base = small(spark, tmp_path, "a")
    history.delete(history.find(1, "a"))
    follow(spark, table, history, base, history.commit())
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None
    assert table.at(0).columns == COLUMNS.names
