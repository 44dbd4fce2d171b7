"""Messages and positions of sinks in real Kafka transactions: all or nothing, and never twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.servers import SharedBroker, unique
from tests.topic_reader import read_topic

from penstock.errors import DefiniteError, TransientError
from penstock.sinks.kafka import transaction_writer
from penstock.sinks.kafka.transaction_writer import TopicMessages, TransactionWriter
from penstock.testing.waiting import PATIENCE


class Setup:
    """A topic with two partitions, a topic of positions, and writers of one sink."""

    def __init__(self, broker: SharedBroker) -> None:
        self.settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.topic, self.positions, self.sink = unique("orders"), unique("positions"), unique("sink")
        admin = AdminClient(self.settings)
        compacted = {"cleanup.policy": "compact"}
        wanted = [NewTopic(self.topic, 2, 1), NewTopic(self.positions, 1, 1, config=compacted)]
        for created in admin.create_topics(wanted).values():
            created.result(PATIENCE)

    def writer(self) -> TransactionWriter:
        return TransactionWriter(self.settings, self.sink, self.positions)

    def messages(self, *pairs: tuple[bytes, bytes | None]) -> list[TopicMessages]:
        keys, values = ([pair[place] for pair in pairs] for place in range(2))
        return [TopicMessages(self.topic, pa.array(values, pa.large_binary()), pa.array(keys, pa.large_binary()))]

    def committed(self) -> dict[bytes, list[bytes | None]]:
        """Return the committed messages of the topic by key."""
        found: dict[bytes, list[bytes | None]] = {}
        for message in read_topic(self.settings["bootstrap.servers"], self.topic):
            found.setdefault(message.key() or b"", []).append(message.value())
        return found


@pytest.fixture
def setup(broker: SharedBroker) -> Setup:
    return Setup(broker)


def test_messages_and_position_are_committed_together(setup: Setup) -> None:
    writer = setup.writer()
    assert writer.open(PATIENCE) is None
    writer.write(setup.messages((b"a", b"1"), (b"b", b"1"), (b"a", b"2")), b"10", PATIENCE)
    writer.write(setup.messages((b"a", None)), b"20", PATIENCE)
    writer.close()
    assert setup.committed() == {b"a": [b"1", b"2", None], b"b": [b"1"]}
    assert setup.writer().open(PATIENCE) == b"20"


def test_position_of_another_sink_is_not_used(setup: Setup) -> None:
    other = TransactionWriter(setup.settings, unique("other"), setup.positions)
    other.open(PATIENCE)
    other.write([], b"99", PATIENCE)
    other.close()
    assert setup.writer().open(PATIENCE) is None


def test_next_writer_ends_the_pending_transaction_of_a_writer_that_died(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = setup.writer()
    first.open(PATIENCE)
    first.write(setup.messages((b"a", b"1")), b"10", PATIENCE)
    with monkeypatch.context() as patched:
        # It dies before the commit.
        patched.setattr(transaction_writer, "commit_transaction", lambda producer, _: producer.flush(PATIENCE))
        first.write(setup.messages((b"a", b"lost")), b"20", PATIENCE)
    second = setup.writer()
    assert second.open(PATIENCE) == b"10"
    second.write(setup.messages((b"a", b"2")), b"20", PATIENCE)
    assert setup.committed() == {b"a": [b"1", b"2"]}


def test_position_behind_the_open_transaction_of_another_sink_is_found(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = setup.writer()
    first.open(PATIENCE)
    first.write([], b"10", PATIENCE)
    other = TransactionWriter(setup.settings, unique("other"), setup.positions)
    other.open(PATIENCE)
    with monkeypatch.context() as patched:  # it is slow: its position is written, and not committed yet
        patched.setattr(transaction_writer, "commit_transaction", lambda producer, _: producer.flush(PATIENCE))
        other.write([], b"99", PATIENCE)
    first.write(setup.messages((b"a", b"1")), b"20", PATIENCE)
    with pytest.raises(TransientError, match="does not end"):
        setup.writer().open(3.0)
    other.close()
    assert setup.writer().open(PATIENCE) == b"20"


def test_earlier_writer_is_fenced(setup: Setup) -> None:
    first, second = setup.writer(), setup.writer()
    first.open(PATIENCE)
    second.open(PATIENCE)
    with pytest.raises(TransientError, match=f"another process writes sink {setup.sink}"):
        first.write(setup.messages((b"a", b"1")), b"10", PATIENCE)
    first.close()
    second.write(setup.messages((b"a", b"2")), b"20", PATIENCE)
    assert setup.committed() == {b"a": [b"2"]}


def test_writer_that_is_fenced_while_it_sends(setup: Setup) -> None:
    """The client then rejects further messages with an error that does not say why."""
    first, second = setup.writer(), setup.writer()
    first.open(PATIENCE)

    def messages() -> Iterator[TopicMessages]:
        yield from setup.messages((b"a", b"1"))
        first._producer.flush(PATIENCE)
        second.open(PATIENCE)
        while True:
            yield from setup.messages((b"a", b"2"))

    with pytest.raises(TransientError, match=f"another process writes sink {setup.sink}"):
        first.write(messages(), b"10", PATIENCE)


def test_many_messages_are_written_in_order(setup: Setup) -> None:
    count = 25_000
    writer = setup.writer()
    writer.open(PATIENCE)
    pairs = [(str(number % 7).encode(), str(number).encode()) for number in range(count)]
    writer.write(setup.messages(*pairs), b"1", PATIENCE)
    writer.close()
    found = setup.committed()
    assert {key: [int(value or b"") for value in values] for key, values in found.items()} == {
        str(rest).encode(): list(range(rest, count, 7)) for rest in range(7)
    }


def test_message_that_is_too_large_is_a_definite_error(setup: Setup) -> None:
    writer = setup.writer()
    writer.open(PATIENCE)
    with pytest.raises(DefiniteError, match=r"(?s)could not write to Kafka.*max\.message\.bytes"):
        writer.write(setup.messages((b"a", b"1"), (b"b", random.Random(0).randbytes(2 << 20))), b"10", PATIENCE)
    writer.close()
    assert setup.committed() == {}
    assert setup.writer().open(PATIENCE) is None


def test_missing_topic_is_a_definite_error(setup: Setup) -> None:
    writer = setup.writer()
    writer.open(PATIENCE)
    missing = TopicMessages(unique("missing"), pa.array([b"1"], pa.large_binary()))
    with pytest.raises(DefiniteError, match=f"topic {missing.topic} does not exist"):
        writer.write([missing], b"10", PATIENCE)
    writer.close()


# -- sinks with the same topic of positions ----------------------------------------------------------------------------


def test_position_is_found_while_another_sink_writes(setup: Setup) -> None:
    """The end of the topic is never reached then."""
    first = setup.writer()
    first.open(PATIENCE)
    first.write([], b"1", PATIENCE)
    other = TransactionWriter(setup.settings, unique("other"), setup.positions)
    other.open(PATIENCE)
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            other.write([], b"other", PATIENCE)
            written.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert written.wait(PATIENCE)
        assert setup.writer().open(20.0) == b"1"
    finally:
        stop.set()
        thread.join()
