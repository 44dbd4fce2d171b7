"""Topics of a real broker, written as Debezium writes them, followed by transactions: ticks, waiting, and trouble."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.sources.kafka.followed import Topics
from tests.sources.kafka.transactions.transacted import Bank, Transacted, require_sums

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.sources.kafka.transactions.waiting import valid_from, waits_for
from penstock.testing.waiting import PATIENCE, until


def followed_by(folder: Path, bank: Bank, **options: Any) -> Transacted:
    return Transacted(folder, bank.topics.broker, bank.names, bank.metadata, **options)


def taken(followed: Transacted, bank: Bank) -> Callable[[], bool]:
    """Say whether all that the bank wrote was taken."""

    def holds() -> bool:
        ends = {name: [0, 0] for name in bank.names}
        for name, partition, _ in written:
            if name in ends:
                ends[name][partition] += 1
        return all(followed.upto(name) == ends[name] for name in bank.names)

    written = bank.written
    return holds


def moved(followed: Transacted, position: int) -> bool:
    return followed.durable() >= position


@contextmanager
def transfers(bank: Bank, random: Random) -> Iterator[None]:
    """Let the bank work meanwhile; now and then a Debezium dies, and repeats what it wrote."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            messages = bank.transfer()
            if random.random() < 0.15:
                bank.write(messages[: random.randrange(len(messages))])
                messages = bank.again(random.randrange(len(messages), 40))
            bank.write(messages)
            time.sleep(random.choice([0, 0, 0.01]))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "wrapped", [pytest.param(False, marks=pytest.mark.deep), True], ids=["json", "json with schemas"]
)
def test_every_tick_is_a_whole_transaction_whoever_dies(
    tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    random = Random(wrapped)
    bank = Bank(topics, random, wrapped=wrapped)
    bank.write(bank.copy()[:5])
    followed = followed_by(tmp_path, bank)
    publish = SqliteLogWriter.publish
    deaths = [False, True, False, True]

    def dying(self: SqliteLogWriter, chunks: Any, durable: Any, **told: Any) -> None:
        fatal = chunks and deaths and random.random() < 0.3
        if fatal and deaths.pop():
            message = "died before"
            raise ZeroDivisionError(message)
        publish(self, chunks, durable, **told)
        if fatal:
            message = "died after"
            raise ZeroDivisionError(message)

    monkeypatch.setattr(SqliteLogWriter, "publish", dying)
    with followed.running():
        followed.until(lambda: "first copy" in (waits_for(followed.state) or ""))
        assert not followed.ends(), "half a copy was taken"
    bank.write(bank.sent)
    with transfers(bank, random):
        while deaths or followed.durable() < 8:
            before = followed.durable()
            with suppress(ZeroDivisionError), followed.running():
                followed.until(partial(moved, followed, before + 3))
    deaths.clear()
    followed.run_until(taken(followed, bank))
    assert require_sums(followed, topics.broker, bank.total) > 5
    assert valid_from(followed.state) is None
    assert waits_for(followed.state) is None


def test_what_is_incomplete_waits_and_is_explained(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(5))
    bank.write([*bank.copy(), *bank.transfer()])
    followed = followed_by(tmp_path, bank)
    begun, *events, end = bank.transfer()
    later = bank.transfer()
    with followed.running():
        followed.until(lambda: bool(followed.ends()))
        bank.write([begun, *events[1:], end, *later])
        followed.until(lambda: waits_for(followed.state) is not None)
        said = waits_for(followed.state)
        assert said is not None
        lacks = sum(event[0] == events[0][0] for event in events)
        assert f"transaction 2 is not complete since {time.strftime('%Y-')}" in said
        assert f"{lacks - 1} of {lacks} events in the topic {events[0][0]}" in said
        assert "compaction" in said
        assert require_sums(followed, topics.broker, bank.total) == len(followed.ends())
        bank.write([begun, *events, end, *later])
        followed.until(taken(followed, bank))
        followed.until(lambda: waits_for(followed.state) is None)
    assert require_sums(followed, topics.broker, bank.total)


def test_events_without_their_end_wait(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(6))
    bank.write(bank.copy())
    followed = followed_by(tmp_path, bank)
    *events, end = bank.transfer()
    bank.write(events)
    with followed.running():
        followed.until(lambda: "wait for the END" in (waits_for(followed.state) or ""))
        assert require_sums(followed, topics.broker, bank.total) == 1
        bank.write([end])
        followed.until(taken(followed, bank))
    assert require_sums(followed, topics.broker, bank.total) == 2


def test_a_copy_that_is_not_over_waits(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(7))
    copy = bank.copy()
    bank.write(copy[:-1])
    followed = followed_by(tmp_path, bank)
    with followed.running():
        followed.until(lambda: "first copy" in (waits_for(followed.state) or ""))
        assert not followed.ends()
        bank.write(bank.transfer())  # a change says it, too: the last row may be one of another table
        followed.until(lambda: bool(followed.ends()))


def test_beginning_in_the_middle_says_from_when_on_it_is_valid(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(8))
    bank.write([*bank.copy(), *bank.transfer()])
    *cut, end = bank.transfer()
    bank.write(cut[:-1])
    followed = followed_by(tmp_path, bank, start_offset="latest")
    whole = bank.transfer()
    bank.write([cut[-1], end, *whole])
    with followed.running():
        followed.until(lambda: valid_from(followed.state) is not None)
    commit = bank.commit
    assert f"the transaction that committed at {commit}" in (valid_from(followed.state) or "")
    (ends,) = followed.ends().values()
    touched = {(name, partition) for name, partition, _ in whole if name in bank.names}
    assert all(ends[name][partition] > followed.begun(name)[partition] for name, partition in touched)
    bank.write(bank.transfer())
    followed.run_until(lambda: len(followed.ends()) > 1)


def spoil_by_deleting(bank: Bank) -> None:
    bank.topics.delete(bank.metadata)
    admin = bank.topics.admin
    until(lambda: bank.metadata not in admin.list_topics(timeout=PATIENCE).topics, "the end of the topic")
    bank.topics.make(1, bank.metadata)


def spoil_by_removing(bank: Bank) -> None:
    bank.write(bank.transfer())
    bank.topics.delete_records(bank.metadata, 0, 3)


def spoil_by_partitions(bank: Bank) -> None:
    bank.topics.add_partitions(bank.metadata, 2)


def spoil_by_garbage(bank: Bank) -> None:
    bank.topics.producer.produce(bank.names[0], b"{", partition=0)
    assert bank.topics.producer.flush(PATIENCE) == 0


def spoil_by_a_lost_end(bank: Bank) -> None:
    *events, _ = bank.transfer()
    bank.write([*events, *bank.transfer()])


def spoil_by_another_server(bank: Bank) -> None:
    moved, bank.commit = bank.transfer(), 500
    bank.write([*moved, *bank.transfer(later=10_000)])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_by_deleting, "deleted and made again"),
        (spoil_by_removing, "is still to be read"),
        (spoil_by_partitions, "has 2 partitions: the order of transactions is not known"),
        (spoil_by_garbage, "cannot be read, so it is not known which transaction it is of: JSON: not valid JSON"),
        (spoil_by_a_lost_end, "has no END of transaction 2, but some of later ones"),
        (spoil_by_another_server, "went back: the database behind it is another one now"),
    ],
)
def test_what_ends_the_source(tmp_path: Path, topics: Topics, spoil: Callable[[Bank], None], said: str) -> None:
    bank = Bank(topics, Random(9))
    bank.write([*bank.copy(), *bank.transfer()])
    followed = followed_by(tmp_path, bank)
    followed.run_until(taken(followed, bank))
    spoil(bank)
    name = bank.names[0]
    followed.run_until(lambda: followed.error(name) is not None)
    error = followed.error(name)
    assert error is not None
    assert said in error.message
    assert error.hint
