"""The history part of the change log contract: retention, leases, and positions at a time."""

from __future__ import annotations

import pickle
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.changelog.chunks import ITEMS, ORDERS, batches, chunk, inserted, read
from tests.changelog.conftest import START
from tests.changelog.test_interface import part

from penstock.changelog.interface import (
    ChangeLog,
    ChangeLogReader,
    ChangeLogWriter,
    Chunk,
    Lease,
    Prepared,
    StagedCommit,
)
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn
from penstock.testing.waiting import until

NOW = time.time_ns() // 1000
FOREVER = datetime(2200, 1, 1, tzinfo=UTC)


def moment(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)


def dated(lsn: int, *times: tuple[int, int]) -> Chunk:
    """A chunk of orders with these transactions: position and commit time."""
    original = chunk(ORDERS, [inserted(at) for at, _ in times])
    moments = pa.array([when for _, when in times]).cast(pa.timestamp("us", "UTC"))
    columns = [original.transactions.column(0), original.transactions.column(1), moments]
    transactions = pa.RecordBatch.from_arrays(columns, schema=original.transactions.schema)
    assert times[-1][0] <= lsn
    return Chunk(original.table, 1, transactions, original.images, original.kinds, original.unchanged)


def publish(writer: ChangeLogWriter, *times: tuple[int, int]) -> None:
    last = times[-1]
    writer.publish([dated(last[0], *times)], Lsn(last[0]), committed_at=last[1])


def later(seconds: float) -> int:
    """A time after the creation of all logs of this run, however long it takes."""
    return NOW + 1_000_000 * 86400 + round(seconds * 1e6)


@pytest.fixture
def history(writer: ChangeLogWriter) -> ChangeLogWriter:
    """Ten transactions, a second apart, in five publications."""
    for lsn in range(20, 30, 2):
        publish(writer, (lsn, later(lsn)), (lsn + 1, later(lsn + 1)))
    return writer


def test_time_resolves_to_the_last_transaction_at_or_before_it(
    history: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    assert [reader.position_at(moment(later(s))) for s in (20, 20.5, 21, 22.9, 29, 99)] == [20, 20, 21, 22, 29, 29]
    assert reader.position_at(moment(later(19.9))) == START
    history.publish([], Lsn(50))
    assert reader.position_at(moment(later(99))) == 50, "no later transaction exists up to there"
    assert reader.position_at(moment(later(28.5))) == 28


def test_position_resolves_to_the_time_of_the_last_publication_up_to_it(
    history: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    found = [reader.time_at(Lsn(lsn)) for lsn in (21, 22, 25, 27, 29, 99)]
    assert found == [moment(later(s)) for s in (21, 21, 25, 27, 29, 29)]
    begins = reader.frontiers().valid_at
    assert reader.time_at(START) == reader.time_at(Lsn(20)) == begins
    history.retain(moment(later(25)))
    assert reader.time_at(Lsn(21)) == moment(later(25)), "the start of history"
    assert reader.time_at(Lsn(27)) == moment(later(27))


def test_number_of_changes_survives_retention_and_reopening(log: ChangeLog, history: ChangeLogWriter) -> None:
    history.retain(FOREVER)
    with closing(log.reader()) as reader:
        assert reader.frontiers().valid == 29
        assert reader.changes()[ORDERS.table] == 10
        publish(history, (40, later(40)))
        assert reader.changes()[ORDERS.table] == 11
    with closing(log.reader()) as fresh:
        assert fresh.changes()[ORDERS.table] == 11


def test_time_before_log_creation_is_rejected(history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    with pytest.raises(HistoryExpiredError, match="begins at") as caught:
        reader.position_at(moment(NOW - 3600_000_000))
    assert caught.value.hint


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(-1, 61))
def test_commit_times_out_of_order(log: ChangeLog, commits: list[list[int]], asked: int) -> None:
    """The longest prefix of history without a later commit time, whatever the order of times."""
    log.remove()
    log.create(START)
    lsn, flat = 20, []
    with closing(log.writer()) as writer, closing(log.reader()) as reader:
        writer.define(ORDERS, START)
        for group in commits:
            times = [(lsn + n, later(s)) for n, s in enumerate(group)]
            publish(writer, *times)
            flat += times
            lsn += len(group)
        late = [at for at, when in flat if when > later(asked)]
        found = reader.position_at(moment(later(asked)))
        assert [at for at, _ in flat if at <= found] == [at for at, _ in flat if not late or at < late[0]]


def test_clock_publication_fixes_the_positions_of_earlier_times(
    history: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    assert reader.frontiers().passed == moment(later(29))
    history.publish([], Lsn(40), passed=later(50))
    found = reader.frontiers()
    assert (found.durable, found.passed, found.committed_at) == (40, moment(later(50)), moment(later(29)))
    assert [found.has_reached(moment(later(s))) for s in (49.9, 50)] == [True, False]
    assert [found.has_reached(Lsn(at)) for at in (40, 41)] == [True, False]
    settled = {s: reader.position_at(moment(later(s))) for s in (28, 29, 40, 49.9)}
    publish(history, (60, later(45)), (61, later(70)))
    assert {s: reader.position_at(moment(later(s))) for s in settled} == settled, "unchanged by a backdated commit"
    assert [reader.position_at(moment(later(s))) for s in (50, 69, 70)] == [60, 60, 61]
    history.publish([], Lsn(61), passed=later(65))
    assert reader.frontiers().passed == moment(later(70)), "`passed` never decreases"


def test_times_in_an_idle_period_resolve_to_the_last_transaction(
    history: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    for at in range(40, 60):
        history.publish([], Lsn(at), passed=later(at))
        for asked in (29, 39.5, at - 0.5):
            assert 29 <= reader.position_at(moment(later(asked))) <= at
        assert reader.position_at(moment(later(28.5))) == 28
    publish(history, (70, later(70)))
    assert all(29 <= reader.position_at(moment(later(asked))) <= 59 for asked in (30, 45, 59.5, 69))


def test_positions_of_a_new_writer_are_not_part_of_earlier_times(log: ChangeLog, reader: ChangeLogReader) -> None:
    """A table may be added while no writer is open: earlier times must not resolve to later positions."""
    for lsn in (20, 50):
        with closing(log.writer()) as writer:
            writer.define(ORDERS, START)
            writer.publish([], Lsn(lsn), passed=later(lsn))
            writer.publish([], Lsn(lsn + 10), passed=later(lsn + 10))
    assert [reader.position_at(moment(later(s))) for s in (19, 49)] == [START, 30]


def test_clock_records_of_an_idle_log_are_removed(
    log: ChangeLog, history: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    reader.set_lease("tables", Lsn(29))
    for at in range(30, 80):
        history.publish([], Lsn(29), passed=later(at))
    found = history.retain(moment(later(70)))
    assert (found.valid, found.valid_at, found.passed) == (29, moment(later(29)), moment(later(79)))
    with closing(log.reader()) as fresh:
        for each in (reader, fresh):
            assert {each.position_at(moment(later(s))) for s in (29, 50, 78, 99)} == {29}
            with pytest.raises(HistoryExpiredError):
                each.position_at(moment(later(28.9)))


def test_staged_transactions_resolve_by_commit_time(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    publish(writer, (20, later(20)))
    writer.stage(7, [part((7, 0, 10))])
    writer.publish([], Lsn(30), committed_at=later(30), staged={7: StagedCommit(Lsn(30), later(30))})
    assert [reader.position_at(moment(later(s))) for s in (29, 30)] == [20, 30]


def test_history_is_removed_up_to_a_time(history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    found = history.retain(moment(later(23.5)))
    assert (found.valid, found.durable) == (23, 29)
    assert reader.frontiers() == found
    assert [row.lsn for row in read(reader, ORDERS)] == [24, 25, 26, 27, 28, 29]
    assert [row.lsn for row in read(reader, ORDERS, 25)] == [26, 27, 28, 29]
    assert reader.tables()[ORDERS.table].valid == 23
    with pytest.raises(HistoryExpiredError, match="begins at 0/17"):
        reader.extent(ORDERS.table, Lsn(22), Lsn(29))
    with pytest.raises(HistoryExpiredError):
        reader.position_at(moment(later(22)))
    assert reader.position_at(moment(later(24))) == 24


def test_retention_cuts_between_transactions_of_one_chunk(history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    assert history.retain(moment(later(24))).valid == 24
    assert [row.lsn for row in read(reader, ORDERS, 24)] == [25, 26, 27, 28, 29]


def test_extent_planned_before_retention_is_rejected(history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    """A range that is no longer complete is an error, never fewer rows."""
    planned = reader.extent(ORDERS.table, Lsn(19), Lsn(29))
    sent = pickle.loads(pickle.dumps(planned))
    history.retain(moment(later(25)))
    with pytest.raises(HistoryExpiredError) as caught:
        list(reader.read(sent))
    assert caught.value.hint
    assert read(reader, ORDERS, 25) == [inserted(lsn) for lsn in (26, 27, 28, 29)]


def test_leases_retain_history(log: ChangeLog, history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    reader.set_lease("slow", Lsn(22))
    reader.set_lease("lease", Lsn(24), 3600)
    assert [(lease.reader, lease.at, lease.expires is None) for lease in reader.leases()] == [
        ("lease", 24, False),
        ("slow", 22, True),
    ]
    with closing(log.reader()) as other:
        assert other.leases() == reader.leases()
    assert history.retain(FOREVER).valid == 22
    reader.set_lease("slow", Lsn(26))
    assert history.retain(FOREVER).valid == 24
    reader.set_lease("lease", None)
    assert history.retain(FOREVER).valid == 26
    reader.set_lease("slow", None)
    assert reader.leases() == []
    assert history.retain(FOREVER).valid == 29
    assert read(reader, ORDERS) == []


def test_a_lease_expires(history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    reader.set_lease("lease", Lsn(22), 3600)
    assert history.retain(FOREVER).valid == 22
    reader.set_lease("lease", Lsn(22), 0.05)
    until(lambda: reader.leases() == [], "the lease to expire")
    assert history.retain(FOREVER).valid == 29


def test_expired_history_cannot_be_leased(history: ChangeLogWriter, reader: ChangeLogReader) -> None:
    history.retain(moment(later(25)))
    reader.set_lease("on the edge", Lsn(25))
    with pytest.raises(HistoryExpiredError, match="begins at"):
        reader.set_lease("late", Lsn(24))
    assert [lease.reader for lease in reader.leases()] == ["on the edge"]


def test_leases_and_frontiers_survive_their_writer(log: ChangeLog, reader: ChangeLogReader) -> None:
    with closing(log.writer()) as writer:
        writer.define(ORDERS, START)
        for lsn in range(20, 30):
            publish(writer, (lsn, later(lsn)))
        reader.set_lease("slow", Lsn(22))
        writer.retain(FOREVER)
    with closing(log.writer()) as writer:
        writer.define(ORDERS)
        assert writer.frontiers().valid == 22
        assert writer.retain(FOREVER).valid == 22
        publish(writer, (40, later(40)))
    with closing(log.reader()) as fresh:
        assert fresh.leases() == [Lease("slow", Lsn(22), None)]
        assert [row.lsn for row in read(fresh, ORDERS)] == [*range(23, 30), 40]
        assert fresh.tables() == reader.tables()


def test_staged_and_prepared_parts_survive_retention(log: ChangeLog, reader: ChangeLogReader) -> None:
    with closing(log.writer()) as writer:
        writer.define(ORDERS, START)
        writer.stage(7, [part((7, 0, 10))])
        writer.stage(8, [part((8, 0, 20))])
        writer.settle(8, Prepared())
        for lsn in range(20, 30):
            publish(writer, (lsn, later(lsn)))
        assert writer.retain(FOREVER).valid == 29
        writer.publish([], Lsn(40), staged={7: StagedCommit(Lsn(40), later(40))})
        writer.retain(moment(later(29.5)))
    with closing(log.writer()) as writer:
        writer.define(ORDERS)
        writer.publish([], Lsn(50), staged={8: StagedCommit(Lsn(50), later(50))})
    for opened in (reader, log.reader()):
        with closing(opened) as each:
            assert [(row.lsn, row.values) for row in read(each, ORDERS)] == [(40, (10, "x")), (50, (20, "x"))]


def test_an_idle_table_loses_nothing(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    publish(writer, (20, later(20)))
    writer.publish([chunk(ITEMS, [inserted(25)])], Lsn(25), committed_at=later(25))
    writer.retain(moment(later(21)))
    assert batches(reader, ORDERS, 20) == []
    assert [row.lsn for row in read(reader, ITEMS)] == [25]
    assert reader.frontiers().valid == 20


def test_time_inside_a_truncated_publication_is_rejected(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    publish(writer, (20, later(20)), (21, later(21)), (22, later(22)))
    assert writer.retain(moment(later(21))).valid == 21
    assert reader.position_at(moment(later(21))) == 21
    with pytest.raises(HistoryExpiredError):
        reader.position_at(moment(later(20.5)))
