"""A log in Kafka under faults: lost responses, killed writers, brokers that crash and restart."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message
from tests.changelog.chunks import ITEMS, ORDERS, Row, chunk, inserted, read
from tests.changelog.conftest import START
from tests.servers import SharedBroker

from penstock.changelog.interface import StagedCommit
from penstock.changelog.kafka import clients, index_tail, session, topics
from penstock.changelog.kafka import writer as writer_module
from penstock.changelog.kafka.clients import Delivery
from penstock.changelog.kafka.log import KafkaLog
from penstock.changelog.kafka.session import Session
from penstock.changelog.kafka.writer import KafkaLogWriter
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.waiting import PATIENCE, until

ROOT = Path(__file__).parent.parent.parent

FORK_SERVER = """
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
    published = os.read(read_end, 100)
    time.sleep(random.random() * 0.06)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read_end, 1000):
        published += more
    os.close(read_end)
    print(published.decode().replace(chr(10), ' '), flush=True)
"""


def rows_of(at: int) -> list[Row]:
    """Every fourth transaction exceeds the message size limit."""
    return [inserted(at, n, "y" * (1_500_000 if n == 0 and at % 4 == 0 else 3)) for n in (0, 1)]


def publish_one(writer: KafkaLogWriter, at: int) -> None:
    """Publish the transaction at a position: two orders and an item; in every third one, the first order is staged."""
    rows, staged = rows_of(at), {}
    if at % 3 == 0:
        writer.stage(at, [chunk(ORDERS, [rows.pop(0)])])
        staged = {at: StagedCommit(Lsn(at), at)}
    writer.publish([chunk(ORDERS, rows), chunk(ITEMS, [inserted(at)])], Lsn(at), committed_at=at, staged=staged)


def check_published(log: KafkaLog, at_least: int) -> int:
    """Check that the log has exactly the rows up to `durable`, once and in order; return `durable`."""
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
        assert durable >= at_least
        assert read(reader, ORDERS) == [row for lsn in range(START + 1, durable + 1) for row in rows_of(lsn)]
        assert read(reader, ITEMS) == [inserted(lsn) for lsn in range(START + 1, durable + 1)]
    return durable


@pytest.fixture
def log(broker: SharedBroker) -> Iterator[KafkaLog]:
    created = KafkaLog(broker.bootstrap, f"penstock.{uuid.uuid4().hex}")
    created.create(START)
    yield created
    created.remove()


@pytest.fixture
def writer(log: KafkaLog) -> Iterator[KafkaLogWriter]:
    with closing(log.writer()) as opened:
        for table in (ORDERS, ITEMS):
            opened.define(table)
        yield opened


@pytest.mark.deep
def test_kill_9_of_the_writer_at_random_points(log: KafkaLog) -> None:
    """After every kill the log holds what was published, and possibly the publication in progress."""
    command = [sys.executable, "-c", FORK_SERVER, log.brokers, log.name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as fork_server:
        assert fork_server.stdin is not None
        assert fork_server.stdout is not None
        durable = int(START)
        for _ in range(30):
            fork_server.stdin.write(b"another\n")
            fork_server.stdin.flush()
            published = [int(word) for word in fork_server.stdout.readline().split()]
            assert published[0] in (durable + 1, durable + 2), (
                "the publication in progress may have been committed since"
            )
            assert published == list(range(published[0], published[-1] + 1))
            durable = check_published(log, published[-1])
            assert durable <= published[-1] + 1
        fork_server.stdin.close()
    with closing(log.writer()):
        assert check_published(log, durable) <= durable + 1


# -- lost responses -------------------------------------------------------------------------------------------------

Commit = Callable[..., None]


def failing(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Commit, int], Commit]) -> list[int]:
    """Replace the first commit of each step by `fault`; return a list with the number of commits."""
    whole, calls = Session.commit, [0]

    def commit(self: Session, *given: object) -> None:
        calls[0] += 1
        (fault(whole, calls[0]) if calls[0] % 2 else whole)(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "commit", commit)
    return calls


def lost(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def test_commit_with_a_lost_response_is_not_repeated(
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
def test_commit_that_did_not_happen_is_retried(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The messages are in the topics, but the commit was never sent."""

    def fault(whole: Commit, _: int) -> Commit:
        def commit(self: Session, *given: object) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(session, "commit_transaction", lambda producer, _: producer.flush(PATIENCE))
                whole(self, *given)
            raise lost(code)

        return commit

    calls = failing(monkeypatch, fault)
    for at in (11, 12, 13):
        calls[0] = 0
        writer.publish([chunk(ORDERS, rows_of(at)), chunk(ITEMS, [inserted(at)])], Lsn(at))
        assert calls[0] == 2
    assert check_published(log, 13) == 13


def test_transaction_aborted_by_brokers_is_a_transient_error(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause beyond the transaction timeout: fenced, and no successor in the index."""

    def fault(whole: Commit, _: int) -> Commit:
        def commit(*given: object) -> None:
            raise lost(KafkaError.PRODUCER_FENCED)

        return commit

    failing(monkeypatch, fault)
    with pytest.raises(TransientError, match="brokers aborted") as caught:
        publish_one(writer, 11)
    assert "Open the log again" in caught.value.hint
    monkeypatch.undo()
    with pytest.raises(TransientError, match="brokers aborted"):
        publish_one(writer, 11)
    with closing(log.writer()) as another:
        publish_one(another, 11)
    assert check_published(log, 11) == 11


def test_permanent_error_is_not_retried(writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(whole: Commit, _: int) -> Commit:
        def commit(*given: object) -> None:
            raise lost(KafkaError.TOPIC_AUTHORIZATION_FAILED)

        return commit

    calls = failing(monkeypatch, fault)
    with pytest.raises(DefiniteError, match="could not be written") as caught:
        publish_one(writer, 11)
    assert calls == [1]
    assert "Grant" in caught.value.hint


# -- invalid offsets ------------------------------------------------------------------------------------------------


def without_offsets(monkeypatch: pytest.MonkeyPatch, module: ModuleType, invalid: tuple[int, int]) -> list[int]:
    """Let the clients that a module creates return invalid index offsets the first two times; return the count."""
    whole, calls = clients.consumer, [0]

    class Stalled:
        def __init__(self, *given: Any, **settings: Any) -> None:
            self._client = whole(*given, **settings)

        def get_watermark_offsets(self, *given: Any, **more: Any) -> tuple[int, int]:
            if calls[0] < 2:
                calls[0] += 1
                return invalid
            return self._client.get_watermark_offsets(*given, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

    monkeypatch.setattr(module, "consumer", Stalled)
    return calls


INVALID_OFFSETS = [(OFFSET_INVALID, OFFSET_INVALID), (0, OFFSET_INVALID), (OFFSET_INVALID, 1)]


@pytest.mark.parametrize("invalid", INVALID_OFFSETS)
def test_invalid_index_offsets_are_requested_again(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch, invalid: tuple[int, int]
) -> None:
    """A reader that treated the invalid offset as a number would report an empty log."""
    publish_one(writer, 11)
    calls = without_offsets(monkeypatch, index_tail, invalid)
    assert check_published(log, 11) == 11
    assert calls == [2]


@pytest.mark.parametrize("invalid", INVALID_OFFSETS)
def test_log_exists_despite_invalid_offsets(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, invalid: tuple[int, int]
) -> None:
    calls = without_offsets(monkeypatch, topics, invalid)
    assert log.exists()
    assert calls == [2]


def test_message_without_an_offset_is_written_again(
    log: KafkaLog, writer: KafkaLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers respond to a duplicate message: the index would refer to an invalid offset."""
    whole, calls = Delivery.__call__, itertools.count()

    def without_offset(self: Delivery, error: KafkaError | None, message: Message) -> None:
        whole(self, error, message)
        if next(calls) == 0:
            self._offset = OFFSET_INVALID

    monkeypatch.setattr(Delivery, "__call__", without_offset)
    publish_one(writer, 11)
    assert next(calls) > 2
    assert check_published(log, 11) == 11


# -- brokers that crash ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with start_kafka(tmp_path / "kafka") as broker:
        yield broker


@pytest.mark.deep
def test_writer_survives_broker_crashes_and_restarts(own_broker: KafkaBroker) -> None:
    """The writer sees no error; everything is published once, in order, and readers only see whole transactions."""
    log = KafkaLog(own_broker.bootstrap, "penstock.shop")
    log.create(START)
    stop, published, torn = threading.Event(), [int(START)], []
    failed: list[BaseException] = []

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
        for crash in (own_broker.kill, own_broker.stop, own_broker.kill):
            _await_growth(published, failed)
            crash()
            own_broker.start()
        _await_growth(published, failed)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert (failed, torn) == ([], [])
    assert check_published(log, published[-1]) == published[-1]


@pytest.mark.deep
def test_unavailable_broker_is_a_transient_error(own_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_LIMIT", 3.0)
    monkeypatch.setattr(writer_module, "_INIT_SECONDS", 1.0)
    log = KafkaLog(own_broker.bootstrap, "penstock.shop")
    log.create(START)
    with closing(log.writer()) as writer:
        for table in (ORDERS, ITEMS):
            writer.define(table)
        publish_one(writer, 11)
        own_broker.kill()
        with pytest.raises(TransientError, match=r"penstock\.shop") as caught:
            publish_one(writer, 12)
        assert own_broker.bootstrap in caught.value.hint
        own_broker.start()
        with pytest.raises(TransientError):
            publish_one(writer, 12)
    with closing(log.writer()) as again:
        durable = again.frontiers().durable
        assert durable in (11, 12)
        publish_one(again, durable + 1)
    assert check_published(log, durable + 1) == durable + 1


def _await_growth(published: list[int], failed: list[BaseException]) -> None:
    """Wait for ten more publications."""
    wanted = len(published) + 10
    until(lambda: len(published) >= wanted or failed, "ten more publications")
    assert not failed
