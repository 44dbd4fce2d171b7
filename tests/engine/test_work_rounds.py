"""WorkRounds: many tables, a few at a time, and none waits for a slow one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.engine.work_rounds import WorkRounds
from penstock.testing.waiting import PATIENCE, until


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_each_item_has_its_turn_and_few_run_at_a_time(stop: threading.Event) -> None:
    turns = WorkRounds[int]("turns", stop)
    lock, most_running, running, done = threading.Lock(), 0, 0, list[int]()

    def work(item: int) -> None:
        nonlocal most_running, running
        with lock:
            running += 1
            most_running = max(most_running, running)
        with lock:
            running -= 1
            done.append(item)

    turns.round(work, range(50))
    assert sorted(done) == list(range(50))
    assert most_running <= 2
    turns.shut_down()


def test_slow_item_does_not_block_others_and_is_not_started_twice(stop: threading.Event) -> None:
    turns = WorkRounds[str]("turns", stop, long_seconds=0.05)
    released, started = threading.Event(), list[str]()

    def work(item: str) -> None:
        started.append(item)
        if item.startswith("slow"):
            assert released.wait(PATIENCE)

    turns.round(work, ["slow 1", "slow 2", "slow 3", "a", "b"])
    assert started == ["slow 1", "slow 2", "slow 3", "a", "b"]
    turns.round(work, ["slow 1", "a"])
    assert started[5:] == ["a"]
    released.set()

    def next_turn() -> bool:
        turns.round(work, ["slow 1"])
        return "slow 1" in started[5:]

    until(next_turn, "the next turn of the slow item")
    turns.shut_down()


def test_error_is_raised_after_all_items_had_their_turn(stop: threading.Event) -> None:
    turns = WorkRounds[int]("turns", stop, long_seconds=0.05)
    released, done = threading.Event(), list[int]()

    def work(item: int) -> None:
        if item == 1:
            assert released.wait(PATIENCE)
        if item < 2:
            raise ValueError(item)
        done.append(item)

    with pytest.raises(ValueError, match="0"):
        turns.round(work, [0, 1, 2, 3])
    assert done == [2, 3]
    released.set()
    turns.shut_down()
    with pytest.raises(ValueError, match="1"):  # the error of the slow item is raised at the end of the next round
        turns.round(work, [])


def test_nothing_is_started_after_stop(stop: threading.Event) -> None:
    turns, done = WorkRounds[int]("turns", stop), list[int]()
    stop.set()
    turns.round(done.append, [1, 2])
    assert done == []
    turns.shut_down()
