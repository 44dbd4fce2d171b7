"""Incidents of captured topics on a real broker: detected before a tick is published, never leaving a gap."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin._listoffsets import OffsetSpec
from tests.sources.kafka.topic_capture import TopicCapture, Topics, require_contiguous

from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sources.kafka import topic_admin
from penstock.sources.kafka.ticks import apply_lease_name
from penstock.sources.kafka.topic_admin import TopicAdmin
from penstock.testing.kafka import KafkaBroker, start_kafka


def captured_topic(tmp_path: Path, topics: Topics, *counts: int) -> tuple[TopicCapture, str]:
    """Capture a new topic with `counts` messages in its partitions."""
    name = topics.make(len(counts))
    topics.fill(name, *counts)
    capture = TopicCapture(tmp_path, topics.broker, [name])
    capture.run_until(lambda: capture.upto(name) == list(counts))
    return capture, name


def test_topic_recreated_while_capture_is_stopped(tmp_path: Path, topics: Topics) -> None:
    capture, name = captured_topic(tmp_path, topics, 3, 2)
    topics.delete(name)
    topics.make(2, name)
    topics.fill(name, 5, 5)  # offsets alone would not show it
    error = capture.wait_for_error(name)
    assert f"topic {name} was deleted and recreated" in error.message
    assert capture.upto(name) == [3, 2]
    capture.run_until(lambda: True)
    assert capture.durable() == error.lsn == 2


def test_topic_recreated_during_capture(tmp_path: Path, topics: Topics) -> None:
    name, other = topics.make(), topics.make()
    topics.fill(name, 3, 2)
    capture = TopicCapture(tmp_path, topics.broker, [name, other])
    with capture.running():
        capture.until(lambda: capture.upto(name) == [3, 2])
        topics.delete(name)
        topics.make(2, name)
        topics.fill(name, 5, 5)
        capture.until(lambda: capture.error(name) is not None)
    for topic in (name, other):  # ticks are shared: no topic can resume alone
        error = capture.error(topic)
        assert error is not None
        # On a slow machine the poll happens between delete and create.
        assert re.search(f"topic {name} (was deleted and recreated|does not exist)", error.message)
    assert capture.upto(name) == [3, 2]


def test_deleted_topic(tmp_path: Path, topics: Topics) -> None:
    capture, name = captured_topic(tmp_path, topics, 1)
    topics.delete(name)
    error = capture.wait_for_error(name)
    assert f"topic {name} does not exist" in error.message
    assert capture.upto(name) == [1]


def test_messages_removed_before_capture_are_a_gap(tmp_path: Path, topics: Topics) -> None:
    capture, name = captured_topic(tmp_path, topics, 3, 2)
    topics.fill(name, 4, 4)
    topics.delete_records(name, 0, 3)  # up to what was captured
    with closing(capture.log.reader()) as reader:
        reader.set_lease(apply_lease_name(name), Lsn(1))
    topics.delete_records(name, 1, 3)  # one more
    error = capture.wait_for_error(name)
    assert f"partition 1 of topic {name} begins at offset 3, but offset 2 was not read yet" in error.message
    assert capture.upto(name) == [3, 2]


def test_captured_messages_are_needed_until_they_are_applied(tmp_path: Path, topics: Topics) -> None:
    capture, name = captured_topic(tmp_path, topics, 3, 2)
    topics.fill(name, 1, 1)
    capture.run_until(lambda: capture.upto(name) == [4, 3])
    with closing(capture.log.reader()) as reader:
        reader.set_lease(apply_lease_name(name), Lsn(1))
        reader.set_lease("tables", Lsn(0))  # history that Kafka need not retain
        with capture.running():
            topics.delete_records(name, 0, 3)
            topics.fill(name, 1, 0)
            capture.until(lambda: capture.upto(name) == [5, 3])
            topics.delete_records(name, 0, 4)
            capture.until(lambda: capture.error(name) is not None)
    error = capture.error(name)
    assert error is not None
    assert f"partition 0 of topic {name} begins at offset 4, but offset 3 was not read yet" in error.message


def test_without_base_tables_everything_is_needed(tmp_path: Path, topics: Topics) -> None:
    capture, name = captured_topic(tmp_path, topics, 3, 2)
    topics.delete_records(name, 0, 1)
    assert (
        f"partition 0 of topic {name} begins at offset 1, but offset 0 was not read yet"
        in capture.wait_for_error(name).message
    )


@pytest.mark.deep
def test_capture_recovers_after_a_broker_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_kafka(tmp_path / "kafka") as own_broker:
        require_recovery(tmp_path, own_broker, monkeypatch)


def require_recovery(tmp_path: Path, own_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture a topic of a broker that is killed and restarted."""
    topics = Topics(own_broker)
    patience = 60.0
    monkeypatch.setattr(topic_admin, "TopicAdmin", lambda *given, **more: TopicAdmin(*given, **more, patience=patience))
    capture, name = captured_topic(tmp_path, topics, 3, 2)
    topics.fill(name, 1, 1)
    patience = 0.5
    try:
        with pytest.raises(TransientError, match="could not read"), capture.running():
            capture.until(lambda: capture.upto(name) == [4, 3])
            own_broker.kill()
            capture.until(lambda: False)
        with pytest.raises(TransientError, match="could not read"):
            capture.run_until(lambda: False)
    finally:
        patience = 60.0
        with capture.running():  # it restarts while capture waits for it
            own_broker.start()
            topics.fill(name, 1, 1)
            capture.until(lambda: capture.upto(name) == [5, 4])
    assert capture.error(name) is None
    require_contiguous(capture, name)


@pytest.mark.deep
def test_stalled_broker_is_a_transient_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client then returns invalid offsets, which must not be mistaken for lost or retained messages."""
    with start_kafka(tmp_path / "kafka", session_seconds=30) as own_broker:
        topics = Topics(own_broker)
        capture, name = captured_topic(tmp_path, topics, 3, 2)
        monkeypatch.setattr(topic_admin, "TopicAdmin", lambda *given, **more: TopicAdmin(*given, **more, patience=1.0))
        for expected, spec in ([4, 3], topic_admin._LATEST), ([5, 4], topic_admin._EARLIEST):
            topics.fill(name, 1, 1)
            with stalling(own_broker, spec), pytest.raises(TransientError, match="no offset"):
                run_until_captured(capture, name, expected)
            run_until_captured(capture, name, expected)
            assert capture.error(name) is None
    require_contiguous(capture, name)


def run_until_captured(capture: TopicCapture, name: str, expected: list[int]) -> None:
    """Run until a topic was captured up to these offsets, or has an error."""
    capture.run_until(lambda: capture.upto(name) == expected or capture.error(name) is not None)


@contextmanager
def stalling(own_broker: KafkaBroker, spec: object) -> Iterator[None]:
    """Suspend a broker during requests for these offsets, after the first ones of a run."""
    pid, whole, requests = own_broker.pid, TopicAdmin._list_offsets, itertools.count()
    assert pid is not None

    def listed(client: TopicAdmin, topics: Mapping[str, int], which: OffsetSpec) -> dict[str, tuple[int, ...]]:
        if next(requests) < 2 or which is not spec:
            return whole(client, topics, which)
        os.kill(pid, signal.SIGSTOP)
        try:
            return whole(client, topics, which)
        finally:
            os.kill(pid, signal.SIGCONT)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TopicAdmin, "_list_offsets", listed)
        yield
