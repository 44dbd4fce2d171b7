"""Topics of a real broker, written as Debezium writes them, captured by transactions: ticks, waiting, and errors."""

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
from tests.sources.kafka.topic_capture import Topics
from tests.sources.kafka.transactions.transaction_capture import Bank, TransactionCapture, require_sums

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.sources.kafka.transactions.wait_status import read_wait_reason, valid_from
from penstock.testing.waiting import PATIENCE, until


def capture_of(folder: Path, bank: Bank, **options: Any) -> TransactionCapture:
    return TransactionCapture(folder, bank.topics.broker, bank.names, bank.metadata, **options)


def all_captured(capture: TransactionCapture, bank: Bank) -> Callable[[], bool]:
    """Return a condition: all messages of the bank are captured."""

    def holds() -> bool:
        ends = {name: [0, 0] for name in bank.names}
        for name, partition, _ in written:
            if name in ends:
                ends[name][partition] += 1
        return all(capture.upto(name) == ends[name] for name in bank.names)

    written = bank.written
    return holds


def advanced(capture: TransactionCapture, position: int) -> bool:
    return capture.durable() >= position


@contextmanager
def transfers(bank: Bank, random: Random) -> Iterator[None]:
    """Run transfers in the background; now and then Debezium dies, and repeats messages."""
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
def test_every_tick_ends_with_a_whole_transaction_despite_crashes(
    tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    random = Random(wrapped)
    bank = Bank(topics, random, wrapped=wrapped)
    bank.write(bank.copy()[:5])
    capture = capture_of(tmp_path, bank)
    publish = SqliteLogWriter.publish
    deaths = [False, True, False, True]

    def publish_or_die(self: SqliteLogWriter, chunks: Any, durable: Any, **arguments: Any) -> None:
        fatal = chunks and deaths and random.random() < 0.3
        if fatal and deaths.pop():
            message = "died before"
            raise ZeroDivisionError(message)
        publish(self, chunks, durable, **arguments)
        if fatal:
            message = "died after"
            raise ZeroDivisionError(message)

    monkeypatch.setattr(SqliteLogWriter, "publish", publish_or_die)
    with capture.running():
        capture.until(lambda: "initial snapshot" in (read_wait_reason(capture.state) or ""))
        assert not capture.ends(), "a partial snapshot was captured"
    bank.write(bank.sent)
    with transfers(bank, random):
        while deaths or capture.durable() < 8:
            before = capture.durable()
            with suppress(ZeroDivisionError), capture.running():
                capture.until(partial(advanced, capture, before + 3))
    deaths.clear()
    capture.run_until(all_captured(capture, bank))
    assert require_sums(capture, topics.broker, bank.total) > 5
    assert valid_from(capture.state) is None
    assert read_wait_reason(capture.state) is None


def test_incomplete_transaction_waits_with_a_reason(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(5))
    bank.write([*bank.copy(), *bank.transfer()])
    capture = capture_of(tmp_path, bank)
    begin, *events, end = bank.transfer()
    later = bank.transfer()
    with capture.running():
        capture.until(lambda: bool(capture.ends()))
        bank.write([begin, *events[1:], end, *later])
        capture.until(lambda: read_wait_reason(capture.state) is not None)
        reason = read_wait_reason(capture.state)
        assert reason is not None
        expected_count = sum(event[0] == events[0][0] for event in events)
        assert f"transaction 2 is incomplete since {time.strftime('%Y-')}" in reason
        assert f"{expected_count - 1} of {expected_count} events in topic {events[0][0]}" in reason
        assert "compaction" in reason
        assert require_sums(capture, topics.broker, bank.total) == len(capture.ends())
        bank.write([begin, *events, end, *later])
        capture.until(all_captured(capture, bank))
        capture.until(lambda: read_wait_reason(capture.state) is None)
    assert require_sums(capture, topics.broker, bank.total)


def test_events_without_their_end_wait(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(6))
    bank.write(bank.copy())
    capture = capture_of(tmp_path, bank)
    *events, end = bank.transfer()
    bank.write(events)
    with capture.running():
        capture.until(lambda: "wait for the END" in (read_wait_reason(capture.state) or ""))
        assert require_sums(capture, topics.broker, bank.total) == 1
        bank.write([end])
        capture.until(all_captured(capture, bank))
    assert require_sums(capture, topics.broker, bank.total) == 2


def test_incomplete_snapshot_waits(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(7))
    copy = bank.copy()
    bank.write(copy[:-1])
    capture = capture_of(tmp_path, bank)
    with capture.running():
        capture.until(lambda: "initial snapshot" in (read_wait_reason(capture.state) or ""))
        assert not capture.ends()
        bank.write(bank.transfer())  # a change also ends the snapshot: the last row may belong to another table
        capture.until(lambda: bool(capture.ends()))


def test_late_start_reports_the_first_valid_transaction(tmp_path: Path, topics: Topics) -> None:
    bank = Bank(topics, Random(8))
    bank.write([*bank.copy(), *bank.transfer()])
    *cut, end = bank.transfer()
    bank.write(cut[:-1])
    capture = capture_of(tmp_path, bank, start_offset="latest")
    whole = bank.transfer()
    bank.write([cut[-1], end, *whole])
    with capture.running():
        capture.until(lambda: valid_from(capture.state) is not None)
    commit = bank.commit
    assert f"the transaction that committed at {commit}" in (valid_from(capture.state) or "")
    (ends,) = capture.ends().values()
    touched = {(name, partition) for name, partition, _ in whole if name in bank.names}
    assert all(ends[name][partition] > capture.start_offsets(name)[partition] for name, partition in touched)
    bank.write(bank.transfer())
    capture.run_until(lambda: len(capture.ends()) > 1)


def recreate_metadata(bank: Bank) -> None:
    bank.topics.delete(bank.metadata)
    admin = bank.topics.admin
    until(lambda: bank.metadata not in admin.list_topics(timeout=PATIENCE).topics, "the topic to be deleted")
    bank.topics.make(1, bank.metadata)


def remove_messages(bank: Bank) -> None:
    bank.write(bank.transfer())
    bank.topics.delete_records(bank.metadata, 0, 3)


def add_partition(bank: Bank) -> None:
    bank.topics.add_partitions(bank.metadata, 2)


def write_garbage(bank: Bank) -> None:
    bank.topics.producer.produce(bank.names[0], b"{", partition=0)
    assert bank.topics.producer.flush(PATIENCE) == 0


def omit_an_end(bank: Bank) -> None:
    *events, _ = bank.transfer()
    bank.write([*events, *bank.transfer()])


def switch_server(bank: Bank) -> None:
    moved, bank.commit = bank.transfer(), 500
    bank.write([*moved, *bank.transfer(later=10_000)])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (recreate_metadata, "deleted and recreated"),
        (remove_messages, "was not read yet"),
        (add_partition, "has 2 partitions, so the order of transactions is unknown"),
        (write_garbage, ": JSON: invalid JSON"),
        (omit_an_end, "has no END of transaction 2, but ENDs of later transactions"),
        (switch_server, "went back: the upstream database was replaced"),
    ],
)
def test_permanent_errors_of_the_source(
    tmp_path: Path, topics: Topics, damage: Callable[[Bank], None], reason: str
) -> None:
    bank = Bank(topics, Random(9))
    bank.write([*bank.copy(), *bank.transfer()])
    capture = capture_of(tmp_path, bank)
    capture.run_until(all_captured(capture, bank))
    damage(bank)
    name = bank.names[0]
    capture.run_until(lambda: capture.error(name) is not None)
    error = capture.error(name)
    assert error is not None
    assert reason in error.message
    assert error.hint
