"""The contract of a base table (`penstock.tables.interface`), on every store: Delta in Spark, and tables in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.lanes import LANE
from tests.tables.histories import BAG, KEYED, NAMES, History, Plan, Shape, Step, Transaction, plans

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import DefiniteError, TableError
from penstock.positions import Lsn
from penstock.tables.base_state import Copied, State
from penstock.tables.interface import BaseTable, CreateOptions, TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables

Bag = Counter[tuple[Any, ...]]
BY_ID = Shape(("id",), False)
INSERT_A, INSERT_B = Step("insert", key=0, value=1), Step("insert", key=1, value=2)


@pytest.fixture(params=["memory", pytest.param("spark", marks=LANE)])
def store(request: pytest.FixtureRequest) -> TableStore:
    if request.param == "memory":
        return MemoryTables()
    return SparkTables(request.getfixturevalue("spark"))


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
        """Merge what happened since the table's position, or since `after`, as apply does."""
        base = base or self.base
        state = state_of(base)
        schema = self.history.schemas[upto]
        if schema.added_to(state.schema):
            base.evolve(schema)
        change = self.store.net_change(self.log, base.schema, after or state.position, upto)
        if change is not None:
            base.merge(change.net, upto, change.contents)

    def rows(self, version: int | None = None) -> Bag:
        return bag(self.base.current() if version is None else self.base.at(version))

    def expected(self, position: Lsn) -> Bag:
        return bag(self.history.at(position))


def bag(rows: Any) -> Bag:
    """Rows of any store."""
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return Counter(tuple(row.get(name) for name in NAMES) for row in table.to_pylist())


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
        pytest.param((MemoryTables, BAG), id="memory-keyless"),
        pytest.param((SparkTables, BY_ID), id="spark-keyed", marks=LANE),
        pytest.param((SparkTables, BAG), id="spark-keyless", marks=[LANE, pytest.mark.deep]),
    ]
)
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Followed:
    kind, shape = request.param
    store: TableStore = MemoryTables() if kind is MemoryTables else SparkTables(request.getfixturevalue("spark"))
    return Followed(store, tmp_path, history(*STEPS, shape=shape))


def test_it_follows_a_history_step_by_step_and_every_version_can_be_read(followed: Followed) -> None:
    versions = {followed.first: state_of(followed.base).version}
    for upto in followed.later:
        followed.follow(upto)
        state = state_of(followed.base)
        assert (state.position, state.schema) == (upto, followed.history.schemas[upto])
        assert followed.rows() == followed.expected(upto)
        versions[upto] = state.version
    assert list(versions.values()) == sorted(set(versions.values())), "versions grow"
    for position, version in versions.items():
        assert followed.rows(version) == followed.expected(position)
    found = {position: version for version, position in reversed(followed.base.versions())}
    assert found.keys() == versions.keys()
    assert all(found[position] >= versions[position] for position in versions)


def test_a_replay_changes_nothing(followed: Followed) -> None:
    before = followed.first
    for upto in followed.later:
        followed.follow(upto)
        state = followed.base.state()
        again = followed.store.base(Path(followed.base.path), followed.base.schema)
        followed.follow(upto, again, after=before)
        assert again.state() == state
        assert followed.rows() == followed.expected(upto)
        before = upto


def test_a_change_that_needs_an_absent_row_is_an_error_and_commits_nothing(store: TableStore, tmp_path: Path) -> None:
    followed = Followed(store, tmp_path, history((INSERT_A,), (Step("update", row=0, value=3, left=1),)))
    first, second = followed.later
    followed.base.create(store.rows(followed.history.at(followed.first)), first)  # the row is not there
    state = followed.base.state()
    with pytest.raises(TableError, match="needs a row that its base table does not hold") as caught:
        followed.follow(second)
    assert (caught.value.table, caught.value.lsn) == ("public.t", second)
    assert followed.base.state() == state


def test_create_replaces_what_is_there_also_at_a_lower_position(store: TableStore, tmp_path: Path) -> None:
    followed = Followed(store, tmp_path, history((INSERT_A,), (INSERT_B,)))
    first, second = followed.later
    base, rows = followed.base, store.rows(followed.history.at(second))
    base.create(rows, Lsn(6000))
    base.append(store.rows(followed.history.at(followed.first)), Lsn(7000))
    incarnation = base.incarnation()
    base.create(store.rows(followed.history.at(first)), first, generation=3)
    assert (base.position(), state_of(base).generation) == (first, 3)
    assert base.incarnation() != incarnation
    assert [position for _, position in base.versions()] == [first], "versions are those of this incarnation"
    followed.follow(second)
    assert (base.position(), followed.rows()) == (second, followed.expected(second))


def test_without_a_table_nothing_is_known_and_nothing_is_written(store: TableStore, tmp_path: Path) -> None:
    schema = history((INSERT_A,)).schemas[Lsn(1000)]
    base = store.base(tmp_path / "base", schema)
    assert (base.state(), base.position(), base.version()) == (None, None, None)
    with pytest.raises(DefiniteError, match="no base table"):
        base.append(store.rows(schema.columns.empty_table()), Lsn(6000))


def test_an_incremental_snapshot_shows_no_position_until_it_ends(store: TableStore, tmp_path: Path) -> None:
    made = history((INSERT_A, INSERT_B))
    rows, schema = made.at(made.positions[-1]), made.schemas[Lsn(1000)]
    base = store.base(tmp_path / "base", schema)
    base.create(store.rows(schema.columns.empty_table()), Lsn(5000), window="w")
    assert (state_of(base).window, base.copied()) == ("w", None)
    chunk = Copied(1, 1, 10, ("0",), Lsn(5005))
    for _ in range(2):
        base.add_chunk(store.rows(rows.slice(0, 1)), chunk)
    last = Copied(2, 2, 20, None, Lsn(5010))
    base.add_chunk(store.rows(rows.slice(1)), last)
    assert (base.copied(), state_of(base).window) == (last, "w")
    assert bag(base.current()) == bag(rows)
    base.append(store.rows(schema.columns.empty_table()), Lsn(5010))
    assert (state_of(base).window, base.position()) == (None, 5010)


def test_the_state_of_an_envelope_is_committed_with_the_position(store: TableStore, tmp_path: Path) -> None:
    followed = Followed(store, tmp_path, history((INSERT_A,), (INSERT_B,)))
    for upto, memory in zip(followed.later, ("one", None), strict=True):
        change = store.net_change(followed.log, followed.base.schema, state_of(followed.base).position, upto)
        assert change is not None
        followed.base.merge(change.net, upto, change.contents, memory=memory)
    first, second = followed.later
    assert (followed.base.memory(first), followed.base.memory(second)) == ("one", None)
    with pytest.raises(DefiniteError, match="is gone"):
        followed.base.memory(Lsn(1))


def test_live_is_the_base_and_the_log_since(followed: Followed) -> None:
    path = Path(followed.base.path)
    state = state_of(followed.base)
    for upto in followed.later:
        live = followed.store.live(followed.log, path, state, followed.history.schemas[upto], upto)
        assert bag(live) == followed.expected(upto)


def test_differences_are_counted_and_named(store: TableStore) -> None:
    def side(rows: dict[int, str]) -> Any:
        return store.rows(pa.table({"id": pa.array(rows), "v": pa.array(rows.values())}))

    here, there = side({1: "a", 2: "b", 3: "c"}), side({2: "b", 3: "x", 4: "d"})
    found = store.differences(here, there, ["id"], 20, exact=True)
    assert (found.count, found.missing, found.unexpected, found.changed, found.rows_compared) == (3, 1, 1, 1, 3)
    assert [(one.key["id"], str(one.how)) for one in found.first] == [(1, "missing"), (3, "changed"), (4, "unexpected")]
    assert store.differences(here, here, ["id"], 20, exact=False).count == 0
    keyless = store.differences(here, there, [], 1, exact=False)
    assert (keyless.count, len(keyless.first)) == (4, 1)


def test_compaction_removes_no_version_that_is_needed(followed: Followed) -> None:
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
@given(plan=plans(*KEYED, BAG, widened=True))
def test_tables_in_memory_follow_any_history(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    followed = Followed(MemoryTables(), tmp_path_factory.mktemp("history"), History(plan))
    for upto in followed.later:
        followed.follow(upto)
        assert followed.rows() == followed.expected(upto)
