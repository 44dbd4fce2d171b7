"""The contract of a base table (`penstock.tables.interface`), for every store: Delta in Spark, and tables in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.lanes import LANE
from tests.tables.histories import KEYED, KEYLESS, NAMES, History, Plan, Shape, Step, Transaction, comparable, plans

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import DefiniteError, TableError
from penstock.positions import Lsn
from penstock.tables.base_state import ChunkProgress, State
from penstock.tables.interface import BaseTable, CreateOptions, TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables

RowCounts = Counter[tuple[Any, ...]]
BY_ID = Shape(("id",), False)
INSERT_A, INSERT_B = Step("insert", key=0, value=1), Step("insert", key=1, value=2)


@pytest.fixture(params=["memory", pytest.param("spark", marks=LANE)])
def store(request: pytest.FixtureRequest) -> TableStore:
    if request.param == "memory":
        return MemoryTables()
    return SparkTables(request.getfixturevalue("spark"))


SPARK_IN_DEPTH = [LANE, pytest.mark.deep]
"""The marks of a test in Spark whose rule `tests/tables` and `tests/engine` test in Spark, too."""
STORES = pytest.mark.parametrize("store", ["memory", pytest.param("spark", marks=SPARK_IN_DEPTH)], indirect=True)


class Followed:
    """A history in a real log, and a base table that follows it."""

    def __init__(self, store: TableStore, folder: Path, history: History) -> None:
        self.store, self.history = store, history
        self.log: ChangeLog = SqliteLog(folder / "log.db")
        history.write(self.log)
        self.first, *self.later = history.positions
        self.base: BaseTable = store.base(folder / "base", history.schemas[self.first])
        self.base.create(store.rows(history.at(self.first)), self.first)

    def follow(self, upto: Lsn, base: BaseTable | None = None, after: Lsn | None = None) -> None:
        """Merge the changes after the position of the table, or after `after`, as apply does."""
        base = base or self.base
        state = state_of(base)
        schema = self.history.schemas[upto]
        if schema.added_to(state.schema):
            base.evolve(schema)
        change = self.store.net_change(self.log, base.schema, after or state.position, upto)
        if change is not None:
            base.merge(change.net, upto, change.contents)

    def rows(self, version: int | None = None) -> RowCounts:
        return row_counts(self.base.current() if version is None else self.base.at(version))

    def expected(self, position: Lsn) -> RowCounts:
        return row_counts(self.history.at(position))


def row_counts(rows: Any) -> RowCounts:
    """Count the rows of any store."""
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return Counter(tuple(comparable(row.get(name)) for name in NAMES) for row in table.to_pylist())


def state_of(base: BaseTable) -> State:
    state = base.state()
    assert state is not None
    return state


def history(*transactions: tuple[Step, ...], shape: Shape = BY_ID) -> History:
    return History(Plan(shape, tuple(Transaction(steps, "whole") for steps in transactions)))


STEPS = (
    (INSERT_A, INSERT_B),
    (Step("update", row=0, value=3, left=1), Step("delete", row=1)),
    (Step("widen"), Step("insert", key=2, value=2)),
    (Step("move", row=0, key=3, value=1, left=3),),
    (Step("truncate"), Step("insert", key=1, value=1)),
)


@pytest.fixture(
    params=[
        pytest.param((MemoryTables, BY_ID), id="memory-keyed"),
        pytest.param((MemoryTables, KEYLESS), id="memory-keyless"),
        pytest.param((SparkTables, BY_ID), id="spark-keyed", marks=LANE),
        pytest.param((SparkTables, KEYLESS), id="spark-keyless", marks=[LANE, pytest.mark.deep]),
    ]
)
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Followed:
    kind, shape = request.param
    store: TableStore = MemoryTables() if kind is MemoryTables else SparkTables(request.getfixturevalue("spark"))
    return Followed(store, tmp_path, history(*STEPS, shape=shape))


def test_table_follows_a_history_and_every_version_can_be_read(followed: Followed) -> None:
    """Each step is applied twice, as after a crash before it was recorded: a replay changes nothing."""
    versions, before = {followed.first: state_of(followed.base).version}, followed.first
    for upto in followed.later:
        followed.follow(upto)
        state = state_of(followed.base)
        assert (state.position, state.schema) == (upto, followed.history.schemas[upto])
        again = followed.store.base(Path(followed.base.path), followed.base.schema)
        followed.follow(upto, again, after=before)
        assert again.state() == state
        assert again.count() == sum(followed.expected(upto).values())
        versions[upto], before = state.version, upto
    assert list(versions.values()) == sorted(set(versions.values())), "versions increase"
    for position, version in versions.items():  # a version never changes, so this also checks the rows after each step
        assert followed.rows(version) == followed.expected(position)
    assert followed.rows() == followed.expected(before)
    found = {position: version for version, position in reversed(followed.base.versions())}
    assert found.keys() == versions.keys()
    assert all(found[position] >= versions[position] for position in versions)


def test_change_that_needs_a_missing_row_fails_and_commits_nothing(store: TableStore, tmp_path: Path) -> None:
    followed = Followed(store, tmp_path, history((INSERT_A,), (Step("update", row=0, value=3, left=1),)))
    first, second = followed.later
    followed.base.create(store.rows(followed.history.at(followed.first)), first)  # the row is missing
    state = followed.base.state()
    with pytest.raises(TableError, match="requires a row that is missing from its base table") as caught:
        followed.follow(second)
    assert (caught.value.table, caught.value.lsn) == ("public.t", second)
    assert followed.base.state() == state


def test_create_replaces_an_existing_table_even_at_a_lower_position(store: TableStore, tmp_path: Path) -> None:
    followed = Followed(store, tmp_path, history((INSERT_A,), (INSERT_B,)))
    first, second = followed.later
    base, rows = followed.base, store.rows(followed.history.at(second))
    base.create(rows, Lsn(6000))
    base.append(store.rows(followed.history.at(followed.first)), Lsn(7000))
    incarnation = base.incarnation()
    base.create(store.rows(followed.history.at(first)), first, generation=3)
    assert (base.position(), state_of(base).generation) == (first, 3)
    assert base.incarnation() != incarnation
    assert [position for _, position in base.versions()] == [first], "only versions of this incarnation are listed"
    followed.follow(second)
    assert (base.position(), followed.rows()) == (second, followed.expected(second))


def test_missing_table_has_no_state_and_rejects_writes(store: TableStore, tmp_path: Path) -> None:
    schema = history((INSERT_A,)).schemas[Lsn(1000)]
    base = store.base(tmp_path / "base", schema)
    assert (base.state(), base.position(), base.version()) == (None, None, None)
    with pytest.raises(DefiniteError, match="no base table"):
        base.append(store.rows(schema.columns.empty_table()), Lsn(6000))


@STORES
def test_incremental_snapshot_has_an_open_window_until_it_ends(store: TableStore, tmp_path: Path) -> None:
    source = history((INSERT_A, INSERT_B))
    rows, schema = source.at(source.positions[-1]), source.schemas[Lsn(1000)]
    base = store.base(tmp_path / "base", schema)
    base.create(store.rows(schema.columns.empty_table()), Lsn(5000), window="w")
    assert (state_of(base).window, base.chunk_progress()) == ("w", None)
    chunk = ChunkProgress(1, 1, 10, ("0",), Lsn(5005))
    for _ in range(2):
        base.add_chunk(store.rows(rows.slice(0, 1)), chunk)
    last = ChunkProgress(2, 2, 20, None, Lsn(5010))
    base.add_chunk(store.rows(rows.slice(1)), last)
    assert (base.chunk_progress(), state_of(base).window) == (last, "w")
    assert row_counts(base.current()) == row_counts(rows)
    base.append(store.rows(schema.columns.empty_table()), Lsn(5010))
    assert (state_of(base).window, base.position()) == (None, 5010)


@STORES
def test_envelope_state_is_committed_with_the_position(store: TableStore, tmp_path: Path) -> None:
    followed = Followed(store, tmp_path, history((INSERT_A,), (INSERT_B,)))
    for upto, memory in zip(followed.later, ("one", None), strict=True):
        change = store.net_change(followed.log, followed.base.schema, state_of(followed.base).position, upto)
        assert change is not None
        followed.base.merge(change.net, upto, change.contents, memory=memory)
    first, second = followed.later
    assert (followed.base.memory(first), followed.base.memory(second)) == ("one", None)
    with pytest.raises(DefiniteError, match="no longer contains the commit of position"):
        followed.base.memory(Lsn(1))


def test_live_table_is_the_base_plus_the_log_tail(followed: Followed) -> None:
    path = Path(followed.base.path)
    state = state_of(followed.base)
    for upto in followed.later:
        live = followed.store.live(followed.log, path, state, followed.history.schemas[upto], upto)
        assert row_counts(live) == followed.expected(upto)


def test_differences_are_counted_and_listed(store: TableStore) -> None:
    def side(rows: dict[int, str]) -> Any:
        return store.rows(pa.table({"id": pa.array(rows), "v": pa.array(rows.values())}))

    here, there = side({1: "a", 2: "b", 3: "c"}), side({2: "b", 3: "x", 4: "d"})
    found = store.differences(here, there, ["id"], 20, exact=True)
    assert (found.count, found.missing, found.unexpected, found.changed, found.rows_compared) == (3, 1, 1, 1, 3)
    assert [(one.key["id"], str(one.how)) for one in found.first] == [(1, "missing"), (3, "changed"), (4, "unexpected")]
    assert store.differences(here, here, ["id"], 20, exact=False).count == 0
    keyless = store.differences(here, there, [], 1, exact=False)
    assert (keyless.count, len(keyless.first)) == (4, 1)


@pytest.mark.parametrize(
    "followed",
    [
        pytest.param((MemoryTables, BY_ID), id="memory-keyed"),
        pytest.param((MemoryTables, KEYLESS), id="memory-keyless"),
        pytest.param((SparkTables, BY_ID), id="spark-keyed", marks=SPARK_IN_DEPTH),
        pytest.param((SparkTables, KEYLESS), id="spark-keyless", marks=SPARK_IN_DEPTH),
    ],
    indirect=True,
)
def test_compaction_keeps_required_versions(followed: Followed) -> None:
    followed.later[:] = followed.later[:3]
    for upto in followed.later:
        followed.follow(upto)
    compaction = followed.store.compaction(followed.base)
    compaction.rewrite(state_of(followed.base))
    oldest, position = followed.base.versions()[1]
    assert compaction.vacuum(oldest)
    assert followed.rows(oldest) == followed.expected(position)
    assert followed.rows() == followed.expected(followed.later[-1])


def test_create_options_are_the_arguments_of_create() -> None:
    options = CreateOptions(Lsn(7), {"penstock.source": "shop"}, "all of it", {"n": "a number"}, 2)
    assert options.arguments()["generation"] == 2


@settings(deadline=None, max_examples=60, derandomize=True)
@given(plan=plans(*KEYED, KEYLESS, widened=True))
def test_memory_tables_follow_any_history(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    followed = Followed(MemoryTables(), tmp_path_factory.mktemp("history"), History(plan))
    for upto in followed.later:
        followed.follow(upto)
        assert followed.rows() == followed.expected(upto)
