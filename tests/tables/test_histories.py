"""Base and live tables equal the model, at every position of random histories.

A plan of `tests.tables.histories` has twenty short histories. ``PENSTOCK_HISTORIES`` sets the number of histories for
live tables (240): each is checked from one position to every later one. Base tables are checked with about as many, in
real Delta tables, which take seconds each. This is the deep tier; the fast tier checks all histories in Arrow and two
plans in Spark. Hypothesis shrinks a failing plan and prints it completely.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.tables.histories import GROUPS, KEYED, KEYLESS, NAMES, History, Plan, Row, comparable, plans

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.model import TableSchema, image_schema, missing_value
from penstock.positions import Lsn
from penstock.spark.images import spark_schema
from penstock.tables import log_tail
from penstock.tables.arrow import overlay as overlay_arrow
from penstock.tables.arrow.fold import fold_net
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.columns import column
from penstock.tables.live_table import live_rows
from penstock.tables.log_tail import read_tail
from penstock.tables.small_tables import SmallTables

REQUESTED = os.environ.get("PENSTOCK_HISTORIES")
HISTORIES = int(REQUESTED or "240")
POSITION = st.integers(0, 6)
CUTS = st.lists(st.integers(0, 6), min_size=2, max_size=3, unique=True).map(sorted)
RowCounts = Counter[tuple[Any, ...]]


def plans_of(count: int) -> Any:
    """Return settings for a test of `count` plans: always the same plans, unless PENSTOCK_HISTORIES is set."""
    every = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(
        deadline=None, max_examples=count, derandomize=REQUESTED is None, suppress_health_check=every, print_blob=True
    )


def examples(part: float) -> Any:
    """Return settings for a test of this fraction of all histories."""
    return plans_of(max(1, round(HISTORIES * part / GROUPS)))


@examples(1.0)
@given(plan=plans(*KEYED, *KEYED, KEYLESS, KEYLESS, widened=True))
def test_live_in_arrow(plan: Plan) -> None:
    """Check without Spark, from every position to every later one."""
    history = History(plan)
    with logged(history, in_spark=False) as log:
        check_in_arrow(log, history)


@plans_of(2)
@given(plan=plans(*KEYED, KEYLESS, widened=True), low=POSITION, in_spark=st.booleans())
def test_live_with_a_few_plans(spark: SparkSession, plan: Plan, low: int, in_spark: bool) -> None:
    check_live(spark, plan, low, in_spark)


@plans_of(2)
@given(plan=plans(*KEYED, KEYLESS, widened=True), cuts=CUTS, in_spark=st.booleans())
def test_base_with_a_few_plans(spark: SparkSession, plan: Plan, cuts: list[int], in_spark: bool) -> None:
    check_base(spark, plan, cuts, in_spark)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@examples(1.0)
@given(plan=plans(*KEYED, *KEYED, KEYLESS, KEYLESS), low=POSITION, in_spark=st.booleans())
def test_live(spark: SparkSession, plan: Plan, low: int, in_spark: bool) -> None:
    check_live(spark, plan, low, in_spark)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@examples(0.25)
@given(plan=plans(*KEYED, KEYLESS, widened=True), low=POSITION, in_spark=st.booleans())
def test_live_with_added_columns(spark: SparkSession, plan: Plan, low: int, in_spark: bool) -> None:
    check_live(spark, plan, low, in_spark)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@examples(0.4)
@given(plan=plans(*KEYED), cuts=CUTS, in_spark=st.booleans())
def test_base(spark: SparkSession, plan: Plan, cuts: list[int], in_spark: bool) -> None:
    check_base(spark, plan, cuts, in_spark)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@examples(0.25)
@given(plan=plans(KEYLESS), cuts=CUTS, in_spark=st.booleans())
def test_base_without_a_key(spark: SparkSession, plan: Plan, cuts: list[int], in_spark: bool) -> None:
    check_base(spark, plan, cuts, in_spark)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@examples(0.25)
@given(plan=plans(*KEYED, KEYLESS, widened=True), cuts=CUTS, in_spark=st.booleans())
def test_base_with_added_columns(spark: SparkSession, plan: Plan, cuts: list[int], in_spark: bool) -> None:
    check_base(spark, plan, cuts, in_spark)


@contextmanager
def logged(history: History, in_spark: bool) -> Iterator[ChangeLog]:
    """Write the history to a log; with `in_spark`, let Spark fold all ranges, as it does large ones."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if in_spark:
            patch.setattr(log_tail, "_SMALL_BYTES", -1)
        log = SqliteLog(Path(folder) / "log.db")
        history.write(log)
        yield log


def check_live(spark: SparkSession, plan: Plan, low: int, in_spark: bool) -> None:
    """Check every position after a base at one position; in Arrow, without Spark, for a base at every position."""
    history = History(plan)
    with logged(history, in_spark) as log:
        check_in_arrow(log, history)
        start = history.positions[low % len(history.positions)]
        base, at = frame(spark, history, start), State(0, start, history.schemas[start])
        later = [position for position in history.positions if position >= start]
        wanted = later[-2:] if in_spark else later  # folding moved rows in Spark takes several jobs
        live = [live_rows(spark, log, base, at, schema_at(log, at, upto), upto) for upto in wanted]
        for upto, found in zip(wanted, collected(live), strict=True):
            assert found == expected(history, upto), f"{upto} from {start}"


def check_in_arrow(log: ChangeLog, history: History) -> None:
    for first, last in itertools.combinations_with_replacement(history.positions, 2):
        assert in_arrow(log, history, first, last) == expected(history, last), f"{last} from {first}, in Arrow"


def in_arrow(log: ChangeLog, history: History, first: Lsn, last: Lsn) -> RowCounts:
    at = State(0, first, history.schemas[first])
    schema = schema_at(log, at, last)
    with closing(log.reader()) as reader:
        images = reader.read(reader.extent(schema.table, first, last), schema.columns)
        net = fold_net(pa.Table.from_batches(images, image_schema(schema.columns)), schema)
    added = {field.name: missing_value(field)[0].as_py() for field in schema.added_to(at.schema)}
    base = pa.Table.from_pylist([added | row for row in history.at(first).to_pylist()], schema.columns)
    return row_counts(row for batch in overlay_arrow.live_rows(base.to_batches(), net) for row in batch.to_pylist())


def check_base(spark: SparkSession, plan: Plan, cuts: list[int], in_spark: bool) -> None:
    """Create a base table at the first cut, merge up to the others, and check each of its versions."""
    history = History(plan)
    first, *others = sorted({history.positions[cut % len(history.positions)] for cut in cuts})
    with logged(history, in_spark) as log, tempfile.TemporaryDirectory() as folder:
        table = DeltaBaseTable(spark, folder, history.schemas[first])
        table.create(frame(spark, history, first), first)
        states = [state_of(table), *(follow(spark, table, log, upto) for upto in others)]
        versions = [table.at(state.version) for state in states]
        for upto, found in zip((first, *others), collected(versions), strict=True):
            assert found == expected(history, upto), f"base at {upto}"
        check_small(log, Path(folder), history, states)


def check_small(log: ChangeLog, path: Path, history: History, states: Iterable[State]) -> None:
    """Read every position after each version of a base table in this process, as the running process does."""
    small = SmallTables()
    for at in states:
        for upto in (position for position in history.positions if position >= at.position):
            found = small.rows(log, path, at, schema_at(log, at, upto), upto)
            assert found is not None
            found.validate(full=True)
            assert row_counts(found.to_pylist()) == expected(history, upto), f"{upto} from version {at.version}"


def follow(spark: SparkSession, table: DeltaBaseTable, log: ChangeLog, upto: Lsn) -> State:
    """Merge up to a position as apply does, twice: the second merge changes nothing."""
    before = state_of(table)
    schema = schema_at(log, before, upto)
    if schema.added_to(before.schema):
        table.evolve(schema)
    found = read_tail(spark, log, schema, before.position, upto)
    if found is not None:
        table.merge(found.net, upto, found.contents)
        after = state_of(table)
        assert after.position == upto
        again = DeltaBaseTable(spark, table.path, schema)
        again.merge(found.net, upto, found.contents)
        assert again.state() == after
    return state_of(table)


def state_of(table: DeltaBaseTable) -> State:
    state = table.state()
    assert state is not None
    return state


def schema_at(log: ChangeLog, base: State, upto: Lsn) -> TableSchema:
    """Return the columns at a position, as a live view resolves them."""
    with closing(log.reader()) as reader:
        logged = reader.tables()[base.schema.table]
    return logged.schema_within(base.position, upto) or base.schema


def frame(spark: SparkSession, history: History, at: Lsn) -> DataFrame:
    rows = history.at(at)
    return spark.createDataFrame(rows, spark_schema(rows.schema)).coalesce(1)


def expected(history: History, at: Lsn) -> RowCounts:
    """Return the rows of the model, with null for columns that the log does not have yet."""
    return row_counts(history.at(at).to_pylist())


def row_counts(rows: Iterable[Row]) -> RowCounts:
    return Counter(tuple(comparable(row.get(name)) for name in NAMES) for row in rows)


def collected(frames: list[DataFrame]) -> list[RowCounts]:
    """Count the rows of each DataFrame, in one Spark job."""
    tagged = [
        frame.select(
            F.lit(tag).alias("tag"),
            *((column(name) if name in frame.columns else F.lit(None)).alias(name) for name in NAMES),
        )
        for tag, frame in enumerate(frames)
    ]
    counts: list[RowCounts] = [Counter() for _ in frames]
    for tag, *values in zip(*functools.reduce(DataFrame.union, tagged).toArrow().to_pydict().values(), strict=True):
        counts[tag][tuple(map(comparable, values))] += 1
    return counts
