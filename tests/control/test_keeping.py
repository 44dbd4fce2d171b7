"""What views keep in a log, and for how long."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.changelog.chunks import ORDERS, chunk, inserted

from penstock.changelog.sqlite.log import SqliteLog
from penstock.control import keeping
from penstock.control.keeping import Keeper
from penstock.errors import HistoryGone
from penstock.positions import Lsn

LEASE = 1.0


class View:
    """Something that can be referenced."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteLog]:
    monkeypatch.setattr(keeping, "_LEASE_SECONDS", LEASE)
    monkeypatch.setattr(keeping, "_LOOK_SECONDS", 0.05)
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


def until_pinned(log: SqliteLog, *positions: int) -> None:
    deadline = time.monotonic() + 60
    while pinned(log) != list(positions):
        assert time.monotonic() < deadline, pinned(log)
        time.sleep(0.05)


def test_a_view_keeps_what_it_needs_for_as_long_as_it_lives(log: SqliteLog) -> None:
    keeper, late, early = Keeper("live"), View(), View()
    keeper.hold(late, {"shop": Lsn(30)}, {"shop": log})
    assert pinned(log) == [30]
    keeper.hold(early, {"shop": Lsn(20)}, {"shop": log})
    assert pinned(log) == [20], "one lease for all views"
    keeper.hold(View(), {"shop": Lsn(40)}, {"shop": log})
    began = time.monotonic()
    while time.monotonic() < began + 3 * LEASE:
        assert pinned(log) == [20]
        time.sleep(0.02)
    del early
    gc.collect()
    until_pinned(log, 30)
    thread = keeper._thread
    assert thread is not None
    assert thread.daemon
    del late
    gc.collect()
    until_pinned(log)
    thread.join(30)
    assert keeper._thread is None
    again = View()
    keeper.hold(again, {"shop": Lsn(30)}, {"shop": log})
    assert pinned(log) == [30]
    assert keeper._thread is not None


def test_what_a_view_needed_is_kept_a_while_longer(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataFrame of it may still be read."""
    monkeypatch.setattr(keeping, "_LEASE_SECONDS", 600.0)
    keeper, other = Keeper("live"), View()
    keeper.hold(View(), {"shop": Lsn(20)}, {"shop": log})
    gc.collect()
    keeper.hold(other, {"shop": Lsn(30)}, {"shop": log})
    keeper._leases["shop"].until = 0.0
    time.sleep(0.3)
    assert pinned(log) == [20]


def test_what_is_gone_cannot_be_held(log: SqliteLog) -> None:
    keeper, view, other = Keeper("live"), View(), View()
    keeper.hold(other, {"shop": Lsn(20)}, {"shop": log})
    with pytest.raises(HistoryGone):
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
