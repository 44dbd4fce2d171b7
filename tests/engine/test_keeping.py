"""What views keep in a log, and for how long."""

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
from penstock.engine.leases import Keeper
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until

LEASE = 600.0


class Clock:
    """The keeper's clock, which the test moves: however slow the machine, no lease runs out by itself."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleep = time.sleep

    def monotonic(self) -> float:
        return self.now


class View:
    """Something that can be referenced."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(leases, "time", made)
    return made


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteLog]:
    monkeypatch.setattr(leases, "_LEASE_SECONDS", LEASE)
    monkeypatch.setattr(leases, "_LOOK_SECONDS", 0.05)
    made = SqliteLog(tmp_path / "log.db")
    made.create(Lsn(10))
    with closing(made.writer()) as writer:
        writer.define(ORDERS, Lsn(10))
        for lsn in (20, 30, 40):
            writer.publish([chunk(ORDERS, [inserted(lsn)])], Lsn(lsn))
    yield made


def pinned(log: SqliteLog) -> list[int]:
    with closing(log.reader()) as reader:
        return [int(pin.at) for pin in reader.pins() if pin.reader == "live"]


def expires(log: SqliteLog) -> datetime:
    with closing(log.reader()) as reader:
        (found,) = [pin.expires for pin in reader.pins()]
    assert found is not None
    return found


def until_pinned(log: SqliteLog, *positions: int) -> None:
    until(lambda: pinned(log) == list(positions), f"pins at {positions}")


def renewed(log: SqliteLog, before: datetime) -> bool:
    return expires(log) > before


def test_a_view_keeps_what_it_needs_for_as_long_as_it_lives(log: SqliteLog, clock: Clock) -> None:
    keeper, late, early = Keeper("live"), View(), View()
    keeper.hold(late, {"shop": Lsn(30)}, {"shop": log})
    assert pinned(log) == [30]
    keeper.hold(early, {"shop": Lsn(20)}, {"shop": log})
    assert pinned(log) == [20], "one lease for all views"
    keeper.hold(View(), {"shop": Lsn(40)}, {"shop": log})
    for _ in range(3):
        before = expires(log)
        clock.now += 0.9 * LEASE
        until(partial(renewed, log, before), "the lease to be renewed")
        assert pinned(log) == [20]
    del early
    gc.collect()
    clock.now += 1.1 * LEASE
    until_pinned(log, 30)
    thread = keeper._thread
    assert thread is not None
    assert thread.daemon
    del late
    gc.collect()
    thread.join(PATIENCE)
    assert keeper._thread is None, "nobody renews the lease"
    again = View()
    keeper.hold(again, {"shop": Lsn(30)}, {"shop": log})
    assert pinned(log) == [30]
    assert keeper._thread is not None


def test_what_a_view_needed_is_kept_a_while_longer(log: SqliteLog) -> None:
    """A DataFrame of it may still be read."""
    keeper, other = Keeper("live"), View()
    keeper.hold(View(), {"shop": Lsn(20)}, {"shop": log})
    gc.collect()
    keeper.hold(other, {"shop": Lsn(30)}, {"shop": log})
    lease = keeper._leases["shop"]
    lease.until = 0.0
    until(lambda: lease.until > 0, "the lease to be renewed")
    assert pinned(log) == [20]


def test_what_is_gone_cannot_be_held(log: SqliteLog) -> None:
    keeper, view, other = Keeper("live"), View(), View()
    keeper.hold(other, {"shop": Lsn(20)}, {"shop": log})
    with pytest.raises(HistoryExpiredError):
        keeper.hold(view, {"shop": Lsn(5)}, {"shop": log})
    assert pinned(log) == [20]
    keeper.hold(view, {"shop": Lsn(10)}, {"shop": log})
    assert pinned(log) == [10]


def test_a_source_that_was_dropped_is_not_held_for(log: SqliteLog) -> None:
    keeper, view, later = Keeper("live"), View(), View()
    keeper.hold(view, {"shop": Lsn(20)}, {"shop": log})
    log.remove()
    log.create(Lsn(100))
    keeper.forget("shop")
    keeper.hold(later, {"shop": Lsn(100)}, {"shop": log})
    assert pinned(log) == [100]


def test_an_exception_does_not_end_the_keeping(log: SqliteLog, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would renew leases any more, and history would go that views still need."""
    keeper, view, real, broken = Keeper("live"), View(), SqliteLog.reader, list[int]()
    keeper.hold(view, {"shop": Lsn(20)}, {"shop": log})
    before = expires(log)

    def reader(self: SqliteLog) -> object:
        broken.append(1)
        raise RuntimeError

    monkeypatch.setattr(SqliteLog, "reader", reader)
    clock.now += LEASE * 0.6
    until(lambda: len(broken) > 1, "it was tried, and tried again")
    monkeypatch.setattr(SqliteLog, "reader", real)
    until(lambda: expires(log) > before, "the lease is renewed")
    assert view is not None
