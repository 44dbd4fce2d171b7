"""Rows that were read at many moments, and the log laid over them: over random histories."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from tests.tables.model import KEYED, History, Key, Row, key_of, plain, random_history, row, rows_frame

from penstock.model import image_schema
from penstock.spark.ranges import spark_schema
from penstock.tables.compare import changed_keys
from penstock.tables.contents import Contents, survey
from penstock.tables.fold import fold
from penstock.tables.overlay import overlay
from penstock.tables.repaired_rows import laid_over, of_keys, only, put_right, unresolved, without
from penstock.tables.small_fold import fold_small
from penstock.tables.tail import Tail


def tail_of(spark: SparkSession, history: History, low: int, high: int) -> Tail:
    images = history.frame(spark, low, high)
    contents = survey(images)
    return Tail(fold(images, KEYED, contents), contents)


def read_in_chunks(history: History, low: int, high: int, seed: int) -> list[Row]:
    """Read every key at a moment of its own, as a copy in chunks does."""
    dice = random.Random(seed)
    moments = [at for at in history.states if low <= at <= high]
    chosen: dict[Key, int] = {}
    rows = []
    for at in moments:
        for found in history.states[at]:
            if chosen.setdefault(key_of(found), dice.choice(moments)) == at:
                rows.append(found)
    return rows


def keys_frame(spark: SparkSession, keys: set[Key]) -> DataFrame:
    return rows_frame(spark, [row(grp, key) for grp, key in sorted(keys)]).select("grp", "`a.key`")


@pytest.mark.parametrize(("seed", "truncate"), [(11, False), (12, True)])
def test_chunks_become_the_table_where_old_rows_are_whole(spark: SparkSession, seed: int, truncate: bool) -> None:
    history = random_history(seed, full=True, truncate=truncate)
    low, high = sorted(history.states)[5], max(history.states)
    rows = rows_frame(spark, read_in_chunks(history, low, high, seed))
    tail = tail_of(spark, history, low, high)
    assert not unresolved(tail, KEYED)
    assert plain(laid_over(rows, tail, KEYED).collect()) == plain(history.states[high])


@pytest.mark.parametrize(("seed", "truncate"), [(13, False), (14, False), (15, True)])
def test_rows_that_moved_past_the_copy_are_named_and_put_right(spark: SparkSession, seed: int, truncate: bool) -> None:
    history = random_history(seed, full=False, truncate=truncate)
    low, high = sorted(history.states)[-6], max(history.states)
    rows = rows_frame(spark, read_in_chunks(history, low, high, seed))
    tail = tail_of(spark, history, low, high)
    missing = {key_of(found) for found in unresolved(tail, KEYED)}
    assert missing
    right = [found for found in history.states[high] if key_of(found) in missing]
    whole = put_right(tail, rows_frame(spark, right), keys_frame(spark, missing), KEYED)
    assert plain(overlay(rows, whole.net, KEYED, whole.contents).collect()) == plain(history.states[high])


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_of_chosen_rows_only_what_happened_to_them_counts(spark: SparkSession, seed: int) -> None:
    """Others have left-out values as well, and their rows were not read."""
    history = random_history(seed, full=False, truncate=False)
    low, high = sorted(history.states)[-6], max(history.states)
    dice = random.Random(seed)
    there = sorted({key_of(found) for state in history.states.values() for found in state})
    for count in (0, 1, 3):
        chosen = set(dice.sample(there, count))
        read = [found for found in read_in_chunks(history, low, high, seed) if key_of(found) in chosen]
        tail = only(tail_of(spark, history, low, high), keys_frame(spark, chosen), KEYED)
        moved = {key_of(found) for found in unresolved(tail, KEYED)}
        assert moved <= chosen
        left = keys_frame(spark, moved)
        right = of_keys(laid_over(rows_frame(spark, read), without(tail, left, KEYED), KEYED), left, KEYED, "left_anti")
        expected = [found for found in history.states[high] if key_of(found) in chosen - moved]
        assert plain(right.collect()) == plain(expected)


def test_of_rows_that_are_not_there_nothing_is_asked_that_others_left_out(spark: SparkSession) -> None:
    """Spark knows of an empty relation when it plans, and evaluates at once what it is joined to."""
    history = History()
    history.insert(row(1, "a", 1, "x"))
    low = history.commit()
    history.update(history.find(1, "a"), {"n": 2}, [0])
    images = pa.Table.from_pylist([i for i in history.images if i["_lsn"] > low], image_schema(KEYED.columns))
    net, contents = fold_small(images, KEYED, Contents(rows=1))
    tail = Tail(spark.createDataFrame(net, spark_schema(net.schema)), contents)
    nothing = rows_frame(spark, [])
    with pytest.raises(SparkRuntimeException, match="does not hold"):
        of_keys(laid_over(nothing, tail, KEYED), keys_frame(spark, {(1, "b")}), KEYED).collect()
    assert laid_over(nothing, only(tail, keys_frame(spark, {(1, "b")}), KEYED), KEYED).collect() == []


def test_inserts_that_were_read_already_are_there_once(spark: SparkSession) -> None:
    history = History()
    low = history.commit()
    history.insert(row(1, "a", 1, "x"))
    history.insert(row(1, "b", 2, "y"))
    high = history.commit()
    rows = rows_frame(spark, [row(1, "a", 1, "x")])
    tail = tail_of(spark, history, low, high)
    assert tail.contents.inserts_only
    assert plain(laid_over(rows, tail, KEYED).collect()) == plain(history.states[high])


def test_rows_that_are_absent_go_and_others_stay(spark: SparkSession) -> None:
    base = [row(1, "a", 1, "wrong"), row(1, "b", 2, "fine"), row(1, "c", 3, "invented")]
    right = rows_frame(spark, [row(1, "a", 1, "right")])
    net = put_right(None, right, keys_frame(spark, {(1, "a"), (1, "c")}), KEYED)
    found = overlay(rows_frame(spark, base), net.net, KEYED, net.contents)
    assert plain(found.collect()) == plain([row(1, "a", 1, "right"), row(1, "b", 2, "fine")])


def test_what_the_table_has_not_taken_in_is_kept_beside_the_mending(spark: SparkSession) -> None:
    history = History()
    history.insert(row(1, "a", 1, "x"))
    history.insert(row(1, "b", 2, "y"))
    low = history.commit()
    history.update(history.find(1, "b"), {"n": 5}, [0])
    history.insert(row(2, "c", 3, "z"))
    high = history.commit()
    right = rows_frame(spark, [row(1, "a", 9, "mended")])
    net = put_right(tail_of(spark, history, low, high), right, keys_frame(spark, {(1, "a")}), KEYED)
    found = overlay(history.base(spark, low), net.net, KEYED, net.contents)
    expected = [row(1, "a", 9, "mended"), row(1, "b", 5, "y"), row(2, "c", 3, "z")]
    assert plain(found.collect()) == plain(expected)


def test_changed_keys_are_those_with_any_difference(spark: SparkSession) -> None:
    right = [row(1, "a", 1, None), row(1, "b", 1, "x"), row(1, "c", 1, "x", None), row(1, "d")]
    live = [row(1, "a", 1, ""), row(1, "b", 1, "x"), row(1, "c", 1, None, b"x"), row(1, "e")]
    found = changed_keys(rows_frame(spark, right), rows_frame(spark, live), KEYED).collect()
    assert sorted(one["a.key"] for one in found) == ["a", "c", "d", "e"]


def test_keys_choose_rows(spark: SparkSession) -> None:
    rows = rows_frame(spark, [row(1, "a"), row(1, "b"), row(2, "a")])
    asked = keys_frame(spark, {(1, "a"), (2, "b")})
    assert [key_of(one.asDict()) for one in of_keys(rows, asked, KEYED).collect()] == [(1, "a")]
    others = of_keys(rows, asked, KEYED, "left_anti").collect()
    assert sorted(key_of(one.asDict()) for one in others) == [(1, "b"), (2, "a")]
