"""Turns: many tables, a few at a time, and none waits for one that takes long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.engine.turns import Turns
from penstock.testing.waiting import PATIENCE, until


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_each_has_its_turn_and_few_are_at_work_at_a_time(stop: threading.Event) -> None:
    turns = Turns[int]("turns", stop)
    lock, most, now, done = threading.Lock(), 0, 0, list[int]()

    def work(thing: int) -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
            done.append(thing)

    turns.round(work, range(50))
    assert sorted(done) == list(range(50))
    assert most <= 2
    turns.shut_down()


def test_one_that_takes_long_keeps_nobody_waiting_and_is_not_begun_twice(stop: threading.Event) -> None:
    turns = Turns[str]("turns", stop, long_seconds=0.05)
    released, begun = threading.Event(), list[str]()

    def work(thing: str) -> None:
        begun.append(thing)
        if thing.startswith("slow"):
            assert released.wait(PATIENCE)

    turns.round(work, ["slow 1", "slow 2", "slow 3", "a", "b"])
    assert begun == ["slow 1", "slow 2", "slow 3", "a", "b"]
    turns.round(work, ["slow 1", "a"])
    assert begun[5:] == ["a"]
    released.set()

    def next_turn() -> bool:
        turns.round(work, ["slow 1"])
        return "slow 1" in begun[5:]

    until(next_turn, "its next turn, when it is done")
    turns.shut_down()


def test_an_error_is_raised_when_all_had_their_turn(stop: threading.Event) -> None:
    turns = Turns[int]("turns", stop, long_seconds=0.05)
    released, done = threading.Event(), list[int]()

    def work(thing: int) -> None:
        if thing == 1:
            assert released.wait(PATIENCE)
        if thing < 2:
            raise ValueError(thing)
        done.append(thing)

    with pytest.raises(ValueError, match="0"):
        turns.round(work, [0, 1, 2, 3])
    assert done == [2, 3]
    released.set()
    turns.shut_down()
    with pytest.raises(ValueError, match="1"):  # that of the one that took long comes at the end of the next round
        turns.round(work, [])


def test_nothing_is_begun_when_it_stops(stop: threading.Event) -> None:
    turns, done = Turns[int]("turns", stop), list[int]()
    stop.set()
    turns.round(done.append, [1, 2])
    assert done == []
    turns.shut_down()
