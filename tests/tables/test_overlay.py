"""The table at T is the base at L with the net changes of (L, T]: random histories, and query plans."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.tables.model import KEYED, KEYLESS, History, plain, random_history, random_keyless_history, row

from penstock.errors import TableError
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.tables.base import DeltaBaseTable
from penstock.tables.contents import Contents, survey
from penstock.tables.fold import fold
from penstock.tables.missing_rows import missing_row_errors
from penstock.tables.overlay import overlay


def at(spark: SparkSession, history: History, schema: TableSchema, low: int, high: int, known: bool) -> DataFrame:
    """Return the table at `high` from the base at `low`; with `known`, use the surveyed contents."""
    images = history.frame(spark, low, high)
    found = survey(images)
    contents = found if known else Contents(truncated=found.truncated)
    return overlay(history.base(spark, low), fold(images, schema, contents), schema, contents)


def ranges(history: History, seed: int, count: int) -> list[tuple[int, int]]:
    """Return some ranges (L, T], including the longest one."""
    positions = sorted(history.states)
    rng = random.Random(seed)
    chosen = [sorted(rng.sample(positions, 2)) for _ in range(count - 1)]
    return [(positions[0], positions[-1]), *((low, high) for low, high in chosen)]


@pytest.mark.parametrize(
    ("seed", "full", "truncate"),
    [
        (2, False, True),
        *(
            pytest.param(*each, marks=pytest.mark.deep)
            for each in [(1, False, False), (3, True, False), (4, True, True)]
        ),
    ],
)
def test_random_histories(spark: SparkSession, seed: int, full: bool, truncate: bool) -> None:
    history = random_history(seed, full=full, truncate=truncate)
    for number, (low, high) in enumerate(ranges(history, seed, 2)):
        found = at(spark, history, KEYED, low, high, known=number % 2 == 0).collect()
        assert plain(found) == plain(history.states[high]), (low, high)


def test_random_histories_of_a_keyless_table(spark: SparkSession) -> None:
    history = random_keyless_history(5)
    for number, (low, high) in enumerate(ranges(history, 5, 2)):
        found = at(spark, history, KEYLESS, low, high, known=number % 2 == 0).collect()
        assert plain(found) == plain(history.states[high]), (low, high)


def test_truncated_keyless_table(spark: SparkSession) -> None:
    history = random_keyless_history(6, transactions=2)
    base = max(history.states)
    history.truncate()
    history.insert(row(9, "z"))
    history.insert(row(9, "z"))
    end = history.commit()
    assert plain(at(spark, history, KEYLESS, base, end, known=True).collect()) == plain(history.states[end])


def test_inserts_only(spark: SparkSession) -> None:
    history = History()
    history.insert(row(1, "a"))
    base = history.commit()
    history.insert(row(1, "b"))
    end = history.commit()
    live = at(spark, history, KEYED, base, end, known=True)
    assert plain(live.collect()) == plain(history.states[end])
    assert "Join" not in plan(live)


@pytest.mark.parametrize("moved", [False, True])
def test_unsent_value_without_its_row_is_an_error(spark: SparkSession, moved: bool) -> None:
    history = History()
    history.insert(row(1, "a"))
    base = history.commit()
    history.update(history.find(1, "a"), {"n": 2, **({"a.key": "b"} if moved else {})}, [0])
    end = history.commit()
    images = history.frame(spark, base, end)
    contents = survey(images)
    live = overlay(history.base(spark, base).limit(0), fold(images, KEYED, contents), KEYED, contents)
    with pytest.raises(TableError, match="RETRY TABLE"), missing_row_errors(KEYED, Lsn(1)):
        live.collect()


def test_delete_of_a_missing_row_of_a_keyless_table_is_an_error(spark: SparkSession) -> None:
    history = History(full=True)
    history.insert(row(1, "a"))
    base = history.commit()
    history.delete(history.table[0])
    history.commit()
    images = history.frame(spark, base)
    live = overlay(history.base(spark, base).limit(0), fold(images, KEYLESS), KEYLESS)
    with pytest.raises(TableError, match="RETRY TABLE"), missing_row_errors(KEYLESS, Lsn(1)):
        live.collect()


def test_filters_and_columns_reach_the_delta_scan(spark: SparkSession, tmp_path: Path) -> None:
    history = random_history(7, full=False, groups=20, transactions=6)
    low, high = min(history.states), max(history.states)
    table = DeltaBaseTable(spark, str(tmp_path / "base"), KEYED)
    table.create(history.base(spark, high), Lsn(high))
    base = table.at(0)
    images = history.frame(spark, low, high)
    contents = Contents(rows=100, unchanged=False)
    live = overlay(base, fold(images, KEYED, contents), KEYED, contents)
    text = plan(live.filter("grp = 3 and n > 1").select("n", F.col("`a.key`")))
    scan = next(line for line in text.splitlines() if line.startswith("ReadSchema") and "row:struct" not in line)
    assert "body" not in scan
    assert "EqualTo(grp,3)" in text
    assert "GreaterThan(n,1)" in text
    assert "BroadcastHashJoin LeftAnti" in text


def plan(frame: DataFrame) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue()
