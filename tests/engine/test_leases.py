"""Leases of views: which history they retain, and for how long."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from tests.changelog.chunks import ORDERS, chunk, inserted

from penstock.changelog.sqlite.log import SqliteLog
from penstock.engine import leases
from penstock.engine.leases import LeaseKeeper
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until

LEASE = 600.0


class Clock:
    """The keeper's clock, advanced by the test, so that no lease expires because the machine is slow."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleep = time.sleep

    def monotonic(self) -> float:
        return self.now


class View:
    """An object that can be referenced."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(leases, "time", moved)
    return moved


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteLog]:
    monkeypatch.setattr(leases, "_LEASE_SECONDS", LEASE)
    monkeypatch.setattr(leases, "_POLL_SECONDS", 0.05)
    log = SqliteLog(tmp_path / "log.db")
    log.create(Lsn(10))
    with closing(log.writer()) as writer:
        writer.define(ORDERS, Lsn(10))
        for lsn in (20, 30, 40):
            writer.publish([chunk(ORDERS, [inserted(lsn)])], Lsn(lsn))
    yield log


def lease_positions(log: SqliteLog) -> list[int]:
    with closing(log.reader()) as reader:
        return [int(lease.at) for lease in reader.leases() if lease.reader == "live"]


def expiry(log: SqliteLog) -> datetime:
    with closing(log.reader()) as reader:
        (found,) = [lease.expires for lease in reader.leases()]
    assert found is not None
    return found


def wait_for_leases(log: SqliteLog, *positions: int) -> None:
    until(lambda: lease_positions(log) == list(positions), f"leases at {positions}")


def is_renewed(log: SqliteLog, expiry_before: datetime) -> bool:
    return expiry(log) > expiry_before


def test_view_leases_its_history_while_it_exists(log: SqliteLog, clock: Clock) -> None:
    keeper, late, early = LeaseKeeper("live"), View(), View()
    keeper.hold(late, {"shop": Lsn(30)}, {"shop": log})
    assert lease_positions(log) == [30]
    keeper.hold(early, {"shop": Lsn(20)}, {"shop": log})
    assert lease_positions(log) == [20], "one lease for all views"
    keeper.hold(View(), {"shop": Lsn(40)}, {"shop": log})
    for _ in range(3):
        expiry_before = expiry(log)
        clock.now += 0.9 * LEASE
        until(partial(is_renewed, log, expiry_before), "the lease to be renewed")
        assert lease_positions(log) == [20]
    del early
    gc.collect()
    clock.now += 1.1 * LEASE
    wait_for_leases(log, 30)
    thread = keeper._thread
    assert thread is not None
    assert thread.daemon
    del late
    gc.collect()
    thread.join(PATIENCE)
    assert keeper._thread is None, "the lease is no longer renewed"
    later_view = View()
    keeper.hold(later_view, {"shop": Lsn(30)}, {"shop": log})
    assert lease_positions(log) == [30]
    assert keeper._thread is not None


def test_lease_outlasts_its_view(log: SqliteLog) -> None:
    """A DataFrame of the view may still be read."""
    keeper, other = LeaseKeeper("live"), View()
    keeper.hold(View(), {"shop": Lsn(20)}, {"shop": log})
    gc.collect()
    keeper.hold(other, {"shop": Lsn(30)}, {"shop": log})
    lease = keeper._leases["shop"]
    lease.until = 0.0
    until(lambda: lease.until > 0, "the lease to be renewed")
    assert lease_positions(log) == [20]


def test_closed_view_releases_its_history_at_once(log: SqliteLog, clock: Clock) -> None:
    """Without a wait: its DataFrames are read. Other views at the same position keep theirs."""
    keeper, closed, same, later = LeaseKeeper("live"), View(), View(), View()
    held = keeper.hold(closed, {"shop": Lsn(20)}, {"shop": log})
    others = [keeper.hold(view, {"shop": Lsn(at)}, {"shop": log}) for view, at in ((same, 20), (later, 30))]
    held.close()
    lease = keeper._leases["shop"]
    lease.until = 0.0
    until(lambda: lease.until > 0, "the lease to be renewed")
    assert lease_positions(log) == [20], "another view needs the same history"
    others[0].close()
    wait_for_leases(log, 30)
    others[1].close()
    wait_for_leases(log)
    keeper.hold(closed, {"shop": Lsn(10)}, {"shop": log})
    assert lease_positions(log) == [10], "the keeper can be used again"


def test_view_that_was_deleted_before_another_was_closed_keeps_its_history(log: SqliteLog, clock: Clock) -> None:
    """A DataFrame of the deleted view may still be read."""
    keeper, closed = LeaseKeeper("live"), View()
    held = keeper.hold(closed, {"shop": Lsn(20)}, {"shop": log})
    keeper.hold(View(), {"shop": Lsn(20)}, {"shop": log})
    gc.collect()
    held.close()
    later = View()
    keeper.hold(later, {"shop": Lsn(30)}, {"shop": log})
    lease = keeper._leases["shop"]
    lease.until = 0.0
    until(lambda: lease.until > 0, "the lease to be renewed")
    assert lease_positions(log) == [20]
    clock.now += 1.1 * LEASE
    wait_for_leases(log, 30)


def test_expired_history_cannot_be_leased(log: SqliteLog) -> None:
    keeper, view, other = LeaseKeeper("live"), View(), View()
    keeper.hold(other, {"shop": Lsn(20)}, {"shop": log})
    with pytest.raises(HistoryExpiredError):
        keeper.hold(view, {"shop": Lsn(5)}, {"shop": log})
    assert lease_positions(log) == [20]
    keeper.hold(view, {"shop": Lsn(10)}, {"shop": log})
    assert lease_positions(log) == [10]


def test_forget_releases_the_lease_of_a_dropped_source(log: SqliteLog) -> None:
    keeper, view, later = LeaseKeeper("live"), View(), View()
    keeper.hold(view, {"shop": Lsn(20)}, {"shop": log})
    log.remove()
    log.create(Lsn(100))
    keeper.forget("shop")
    keeper.hold(later, {"shop": Lsn(100)}, {"shop": log})
    assert lease_positions(log) == [100]


def test_renewal_continues_after_an_exception(log: SqliteLog, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise leases would no longer be renewed, and history that views need would expire."""
    keeper, view, reader_of_log, failures = LeaseKeeper("live"), View(), SqliteLog.reader, list[int]()
    keeper.hold(view, {"shop": Lsn(20)}, {"shop": log})
    expiry_before = expiry(log)

    def reader(self: SqliteLog) -> object:
        failures.append(1)
        raise RuntimeError

    monkeypatch.setattr(SqliteLog, "reader", reader)
    clock.now += LEASE * 0.6
    until(lambda: len(failures) > 1, "a second attempt")
    monkeypatch.setattr(SqliteLog, "reader", reader_of_log)
    until(lambda: expiry(log) > expiry_before, "the lease to be renewed")
    assert view is not None


def test_release_ends_the_leases_of_existing_views(log: SqliteLog) -> None:
    keeper, view = LeaseKeeper("live"), View()
    keeper.hold(view, {"shop": Lsn(20)}, {"shop": log})
    assert lease_positions(log) == [20]
    keeper.release()
    assert lease_positions(log) == []
    keeper.hold(view, {"shop": Lsn(30)}, {"shop": log})
    assert lease_positions(log) == [30], "the keeper can be used again"
