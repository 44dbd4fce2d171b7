"""Rows that were read at different positions, combined with the log: random histories."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from tests.tables.model import KEYED, History, Key, Row, key_of, plain, random_history, row, rows_frame

from penstock.model import image_schema
from penstock.spark.images import spark_schema
from penstock.tables.compare import changed_keys
from penstock.tables.contents import Contents, survey
from penstock.tables.fold import fold
from penstock.tables.log_tail import Tail, fold_small
from penstock.tables.overlay import overlay
from penstock.tables.repair import (
    overlay_tail,
    repair_tail,
    rows_with_keys,
    tail_of_keys,
    tail_without_keys,
    unresolved_moves,
)


def tail_of(spark: SparkSession, history: History, low: int, high: int) -> Tail:
    images = history.frame(spark, low, high)
    contents = survey(images)
    return Tail(fold(images, KEYED, contents), contents)


def read_in_chunks(history: History, low: int, high: int, seed: int) -> list[Row]:
    """Read every key at a random position, as an incremental snapshot does."""
    rng = random.Random(seed)
    positions = [at for at in history.states if low <= at <= high]
    chosen: dict[Key, int] = {}
    rows = []
    for at in positions:
        for found in history.states[at]:
            if chosen.setdefault(key_of(found), rng.choice(positions)) == at:
                rows.append(found)
    return rows


def keys_frame(spark: SparkSession, keys: set[Key]) -> DataFrame:
    return rows_frame(spark, [row(grp, key) for grp, key in sorted(keys)]).select("grp", "`a.key`")


@pytest.mark.parametrize(("seed", "truncate"), [pytest.param(11, False, marks=pytest.mark.deep), (12, True)])
def test_chunks_and_log_give_the_table_with_full_old_rows(spark: SparkSession, seed: int, truncate: bool) -> None:
    history = random_history(seed, full=True, truncate=truncate)
    low, high = sorted(history.states)[5], max(history.states)
    rows = rows_frame(spark, read_in_chunks(history, low, high, seed))
    tail = tail_of(spark, history, low, high)
    assert not unresolved_moves(tail, KEYED)
    assert plain(overlay_tail(rows, tail, KEYED).collect()) == plain(history.states[high])


@pytest.mark.parametrize(
    ("seed", "truncate"), [*(pytest.param(seed, False, marks=pytest.mark.deep) for seed in (13, 14)), (15, True)]
)
def test_rows_that_moved_during_the_snapshot_are_found_and_repaired(
    spark: SparkSession, seed: int, truncate: bool
) -> None:
    history = random_history(seed, full=False, truncate=truncate)
    low, high = sorted(history.states)[-6], max(history.states)
    rows = rows_frame(spark, read_in_chunks(history, low, high, seed))
    tail = tail_of(spark, history, low, high)
    missing = {key_of(found) for found in unresolved_moves(tail, KEYED)}
    assert missing
    right = [found for found in history.states[high] if key_of(found) in missing]
    whole = repair_tail(tail, rows_frame(spark, right), keys_frame(spark, missing), KEYED)
    assert plain(overlay(rows, whole.net, KEYED, whole.contents).collect()) == plain(history.states[high])


@pytest.mark.parametrize("seed", [21, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (22, 23))])
def test_only_changes_of_chosen_rows_are_applied(spark: SparkSession, seed: int) -> None:
    """Other rows have unsent values as well, but were not read."""
    history = random_history(seed, full=False, truncate=False)
    low, high = sorted(history.states)[-6], max(history.states)
    rng = random.Random(seed)
    there = sorted({key_of(found) for state in history.states.values() for found in state})
    for count in (0, 1, 3):
        chosen = set(rng.sample(there, count))
        read = [found for found in read_in_chunks(history, low, high, seed) if key_of(found) in chosen]
        tail = tail_of_keys(tail_of(spark, history, low, high), keys_frame(spark, chosen), KEYED)
        moved = {key_of(found) for found in unresolved_moves(tail, KEYED)}
        assert moved <= chosen
        left = keys_frame(spark, moved)
        right = rows_with_keys(
            overlay_tail(rows_frame(spark, read), tail_without_keys(tail, left, KEYED), KEYED), left, KEYED, "left_anti"
        )
        expected = [found for found in history.states[high] if key_of(found) in chosen - moved]
        assert plain(right.collect()) == plain(expected)


def test_unsent_values_of_other_rows_are_not_needed_for_missing_rows(spark: SparkSession) -> None:
    """Spark detects an empty relation during planning, and evaluates the other side of the join immediately."""
    history = History()
    history.insert(row(1, "a", 1, "x"))
    low = history.commit()
    history.update(history.find(1, "a"), {"n": 2}, [0])
    images = pa.Table.from_pylist([i for i in history.images if i["_lsn"] > low], image_schema(KEYED.columns))
    net, contents = fold_small(images, KEYED, Contents(rows=1))
    tail = Tail(spark.createDataFrame(net, spark_schema(net.schema)), contents)
    nothing = rows_frame(spark, [])
    with pytest.raises(SparkRuntimeException, match="missing from its base table"):
        rows_with_keys(overlay_tail(nothing, tail, KEYED), keys_frame(spark, {(1, "b")}), KEYED).collect()
    assert overlay_tail(nothing, tail_of_keys(tail, keys_frame(spark, {(1, "b")}), KEYED), KEYED).collect() == []


def test_inserts_that_were_already_read_appear_once(spark: SparkSession) -> None:
    history = History()
    low = history.commit()
    history.insert(row(1, "a", 1, "x"))
    history.insert(row(1, "b", 2, "y"))
    high = history.commit()
    rows = rows_frame(spark, [row(1, "a", 1, "x")])
    tail = tail_of(spark, history, low, high)
    assert tail.contents.inserts_only
    assert plain(overlay_tail(rows, tail, KEYED).collect()) == plain(history.states[high])


def test_rows_missing_upstream_are_removed_and_others_stay(spark: SparkSession) -> None:
    base = [row(1, "a", 1, "wrong"), row(1, "b", 2, "fine"), row(1, "c", 3, "invented")]
    right = rows_frame(spark, [row(1, "a", 1, "right")])
    net = repair_tail(None, right, keys_frame(spark, {(1, "a"), (1, "c")}), KEYED)
    found = overlay(rows_frame(spark, base), net.net, KEYED, net.contents)
    assert plain(found.collect()) == plain([row(1, "a", 1, "right"), row(1, "b", 2, "fine")])


def test_pending_changes_are_applied_with_the_repair(spark: SparkSession) -> None:
    history = History()
    history.insert(row(1, "a", 1, "x"))
    history.insert(row(1, "b", 2, "y"))
    low = history.commit()
    history.update(history.find(1, "b"), {"n": 5}, [0])
    history.insert(row(2, "c", 3, "z"))
    high = history.commit()
    right = rows_frame(spark, [row(1, "a", 9, "repaired")])
    net = repair_tail(tail_of(spark, history, low, high), right, keys_frame(spark, {(1, "a")}), KEYED)
    found = overlay(history.base(spark, low), net.net, KEYED, net.contents)
    expected = [row(1, "a", 9, "repaired"), row(1, "b", 5, "y"), row(2, "c", 3, "z")]
    assert plain(found.collect()) == plain(expected)


def test_changed_keys_are_those_with_any_difference(spark: SparkSession) -> None:
    right = [row(1, "a", 1, None), row(1, "b", 1, "x"), row(1, "c", 1, "x", None), row(1, "d")]
    live = [row(1, "a", 1, ""), row(1, "b", 1, "x"), row(1, "c", 1, None, b"x"), row(1, "e")]
    found = changed_keys(rows_frame(spark, right), rows_frame(spark, live), KEYED).collect()
    assert sorted(one["a.key"] for one in found) == ["a", "c", "d", "e"]


def test_rows_are_selected_by_key(spark: SparkSession) -> None:
    rows = rows_frame(spark, [row(1, "a"), row(1, "b"), row(2, "a")])
    keys = keys_frame(spark, {(1, "a"), (2, "b")})
    assert [key_of(one.asDict()) for one in rows_with_keys(rows, keys, KEYED).collect()] == [(1, "a")]
    others = rows_with_keys(rows, keys, KEYED, "left_anti").collect()
    assert sorted(key_of(one.asDict()) for one in others) == [(1, "b"), (2, "a")]
