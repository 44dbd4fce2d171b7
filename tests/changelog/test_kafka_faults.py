"""A log in Kafka under faults: answers that do not come, writers that are killed, brokers that crash and come back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.changelog.chunks import ITEMS, ORDERS, Row, chunk, inserted, read
from tests.changelog.conftest import START

from penstock.changelog.interface import StagedCommit
from penstock.changelog.kafka import steps
from penstock.changelog.kafka.log import KafkaLog
from penstock.changelog.kafka.session import Session
from penstock.changelog.kafka.writer import KafkaLogWriter
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.testing.kafka import KafkaBroker, start_kafka

ROOT = Path(__file__).parent.parent.parent

NURSERY = """
import os, random, signal, sys, time
from tests.changelog.chunks import ITEMS, ORDERS
from tests.changelog.test_kafka_faults import publish_one
from penstock.changelog.kafka.log import KafkaLog

def write(acks):
    writer = KafkaLog(sys.argv[1], sys.argv[2]).writer()
    for table in (ORDERS, ITEMS):
        writer.define(table)
    at = writer.frontiers().durable
    while True:
        at += 1
        publish_one(writer, at)
        os.write(acks, b"%d\\n" % at)

for _ in sys.stdin:
    read_end, acks = os.pipe()
    child = os.fork()
    if child == 0:
        write(acks)
    os.close(acks)
    said = os.read(read_end, 100)
    time.sleep(random.random() * 0.06)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read_end, 1000):
        said += more
    os.close(read_end)
    print(*said.split(), flush=True)
"""


def rows_of(at: int) -> list[Row]:
    return [inserted(at, n, "y" * (1_500_000 if n == 0 and at % 4 == 0 else 3)) for n in (1, 2)]


def publish_one(writer: KafkaLogWriter, at: int) -> None:
    """Publish the transaction at a position: two orders and an item; of every third, the first was staged."""
    rows, staged = rows_of(at), {}
    if at % 3 == 0:
        writer.stage(at, [chunk(ORDERS, [Row(at, *_rest(rows.pop(0)))])])
        staged = {at: StagedCommit(Lsn(at), at)}
    writer.publish([chunk(ORDERS, rows), chunk(ITEMS, [inserted(at)])], Lsn(at), committed_at=at, staged=staged)


def _rest(row: Row) -> tuple[object, ...]:
    return row.ordinal, row.image, row.values


def check_published(log: KafkaLog, at_least: int) -> int:
    """Everything up to `durable` is there, whole, once, in order, and nothing else; return `durable`."""
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
        assert durable >= at_least
        assert read(reader, ORDERS) == [row for lsn in range(START + 1, durable + 1) for row in rows_of(lsn)]
        assert read(reader, ITEMS) == [inserted(lsn) for lsn in range(START + 1, durable + 1)]
    return durable


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[KafkaLog]:
    made = KafkaLog(kafka.bootstrap, f"penstock.{uuid.uuid4().hex}")
    made.create(START)
    yield made
    made.remove()


@pytest.fixture
def writer(log: KafkaLog) -> Iterator[KafkaLogWriter]:
    with closing(log.writer()) as opened:
        for table in (ORDERS, ITEMS):
            opened.define(table)
        yield opened


def test_kill_9_of_the_writer_at_random_points(log: KafkaLog) -> None:
    """After every kill the log is what had been published, or that and the publication that was under way."""
    command = [sys.executable, "-c", NURSERY, log.brokers, log.name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        durable = int(START)
        for _ in range(30):
            nursery.stdin.write(b"another\n")
            nursery.stdin.flush()
            said = [int(word) for word in nursery.stdout.readline().split()]
            assert said[0] in (durable + 1, durable + 2), "one that was under way may have been committed since"
            assert said == list(range(said[0], said[-1] + 1))
            durable = check_published(log, said[-1])
            assert durable <= said[-1] + 1
        nursery.stdin.close()
    with closing(log.writer()):
        assert check_published(log, durable) <= durable + 1


# -- answers that do not come ---------------------------------------------------------------------------------------

Commit = Callable[..., None]


def failing(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Commit, int], Commit]) -> list[int]:
    """Let `fault` stand in for the first commit of each step; return the list that counts commits."""
    whole, calls = Session.commit, [0]

    def commit(self: Session, *given: object) -> None:
        calls[0] += 1
        (fault(whole, calls[0]) if calls[0] % 2 else whole)(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "commit", commit)
    return calls


def lost(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(whole: Commit, _: int) -> Commit:
        def commit(*given: object) -> None:
            whole(*given)
            raise lost(KafkaError._TIMED_OUT)

        return commit

    calls = failing(monkeypatch, fault)
    for at in (11, 12, 13):
        calls[0] = 0
        writer.publish([chunk(ORDERS, rows_of(at)), chunk(ITEMS, [inserted(at)])], Lsn(at))
        assert calls[0] == 1
    assert check_published(log, 13) == 13


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_a_commit_that_did_not_happen_is_repeated(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The messages are in the topics, the commit never was."""

    def fault(whole: Commit, _: int) -> Commit:
        def commit(self: Session, *given: object) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(Session, "_end", lambda self, deadline: self._producer.flush(10))
                whole(self, *given)
            raise lost(code)

        return commit

    calls = failing(monkeypatch, fault)
    for at in (11, 12, 13):
        calls[0] = 0
        writer.publish([chunk(ORDERS, rows_of(at)), chunk(ITEMS, [inserted(at)])], Lsn(at))
        assert calls[0] == 2
    assert check_published(log, 13) == 13


def test_a_broker_that_gave_up_on_the_writer_is_a_transient_error(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause beyond the transaction's time: fenced, and no successor in the index."""

    def fault(whole: Commit, _: int) -> Commit:
        def commit(*given: object) -> None:
            raise lost(KafkaError.PRODUCER_FENCED)

        return commit

    failing(monkeypatch, fault)
    with pytest.raises(TransientError, match="given up") as caught:
        publish_one(writer, 11)
    assert "Open the log again" in caught.value.remedy
    monkeypatch.undo()
    with pytest.raises(TransientError, match="given up"):
        publish_one(writer, 11)
    with closing(log.writer()) as another:
        publish_one(another, 11)
    assert check_published(log, 11) == 11


def test_what_nobody_can_mend_is_not_repeated(writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(whole: Commit, _: int) -> Commit:
        def commit(*given: object) -> None:
            raise lost(KafkaError.TOPIC_AUTHORIZATION_FAILED)

        return commit

    calls = failing(monkeypatch, fault)
    with pytest.raises(DefiniteError, match="could not be written") as caught:
        publish_one(writer, 11)
    assert calls == [1]
    assert "Grant" in caught.value.remedy


# -- brokers that crash ---------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[KafkaBroker]:
    with start_kafka(tmp_path / "kafka") as broker:
        yield broker


def test_crashes_and_restarts_of_the_broker_are_ridden_out(own: KafkaBroker) -> None:
    """The writer sees no error; everything is published once, in order, and readers see it whole all the time."""
    log = KafkaLog(own.bootstrap, "penstock.shop")
    log.create(START)
    stop, published, torn, failed = threading.Event(), [int(START)], [], []

    def write() -> None:
        try:
            with closing(log.writer()) as writer:
                for table in (ORDERS, ITEMS):
                    writer.define(table)
                while not stop.is_set():
                    publish_one(writer, published[-1] + 1)
                    published.append(published[-1] + 1)
        except BaseException as error:
            failed.append(error)
            raise

    def look() -> None:
        try:
            with closing(log.reader()) as reader:
                seen = START
                while not stop.is_set():
                    moved = reader.wait(seen, 0.5).durable
                    found = [[row.lsn for row in read(reader, table, seen, moved)] for table in (ORDERS, ITEMS)]
                    wanted = list(range(seen + 1, moved + 1))
                    if found != [[lsn for lsn in wanted for _ in range(2)], wanted]:
                        torn.append((seen, moved))
                    seen = moved
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run) for run in (write, look)]
    for thread in threads:
        thread.start()
    try:
        for crash in (own.kill, own.stop, own.kill):
            before = len(published)
            _await(lambda before=before: len(published) > before + 10 or bool(failed))
            crash()
            time.sleep(0.5)
            own.start()
        before = len(published)
        _await(lambda: len(published) > before + 10 or bool(failed))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert (failed, torn) == ([], [])
    assert check_published(log, published[-1]) == published[-1]


def test_a_broker_that_stays_away_is_a_transient_error(own: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_LIMIT", 3.0)
    monkeypatch.setattr(steps, "_INIT_SECONDS", 1.0)
    log = KafkaLog(own.bootstrap, "penstock.shop")
    log.create(START)
    with closing(log.writer()) as writer:
        for table in (ORDERS, ITEMS):
            writer.define(table)
        publish_one(writer, 11)
        own.kill()
        with pytest.raises(TransientError, match=r"penstock\.shop") as caught:
            publish_one(writer, 12)
        assert own.bootstrap in caught.value.remedy
        own.start()
        with pytest.raises(TransientError):
            publish_one(writer, 12)
    with closing(log.writer()) as again:
        durable = again.frontiers().durable
        assert durable in (11, 12)
        publish_one(again, durable + 1)
    assert check_published(log, durable + 1) == durable + 1


def _await(happened: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert happened()
