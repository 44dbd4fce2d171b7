"""What happens to topics that are followed, on a real broker: recognised before a tick is made, and never a gap."""

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
from tests.sources.kafka.followed import Followed, Topics, require_whole

from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sources.kafka import topic_offsets
from penstock.sources.kafka.ticks import taken_by
from penstock.sources.kafka.topic_offsets import TopicsClient
from penstock.testing.kafka import KafkaBroker, start_kafka


def taken(tmp_path: Path, topics: Topics, *counts: int) -> tuple[Followed, str]:
    """Follow a new topic up to so many messages in each partition."""
    name = topics.make(len(counts))
    topics.fill(name, *counts)
    followed = Followed(tmp_path, topics.broker, [name])
    followed.run_until(lambda: followed.upto(name) == list(counts))
    return followed, name


def test_a_topic_that_was_made_again_while_nobody_looked(tmp_path: Path, topics: Topics) -> None:
    followed, name = taken(tmp_path, topics, 3, 2)
    topics.delete(name)
    topics.make(2, name)
    topics.fill(name, 5, 5)  # offsets alone would not tell
    error = followed.ended(name)
    assert f"the topic {name} was deleted and made again" in error.message
    assert followed.upto(name) == [3, 2]
    followed.run_until(lambda: True)
    assert followed.durable() == error.lsn == 2


def test_a_topic_that_is_made_again_under_our_eyes(tmp_path: Path, topics: Topics) -> None:
    name, other = topics.make(), topics.make()
    topics.fill(name, 3, 2)
    followed = Followed(tmp_path, topics.broker, [name, other])
    with followed.running():
        followed.until(lambda: followed.upto(name) == [3, 2])
        topics.delete(name)
        topics.make(2, name)
        topics.fill(name, 5, 5)
        followed.until(lambda: followed.error(name) is not None)
    for topic in (name, other):  # one tick is for all: none of them can go on alone
        error = followed.error(topic)
        assert error is not None
        # On a slow machine the look at the brokers falls in between.
        assert re.search(f"the topic {name} (was deleted and made again|is gone)", error.message)
    assert followed.upto(name) == [3, 2]


def test_a_topic_that_is_gone(tmp_path: Path, topics: Topics) -> None:
    followed, name = taken(tmp_path, topics, 1)
    topics.delete(name)
    error = followed.ended(name)
    assert f"the topic {name} is gone" in error.message
    assert followed.upto(name) == [1]


def test_messages_that_were_removed_before_they_were_taken_are_a_gap(tmp_path: Path, topics: Topics) -> None:
    followed, name = taken(tmp_path, topics, 3, 2)
    topics.fill(name, 4, 4)
    topics.delete_records(name, 0, 3)  # up to what was taken
    with closing(followed.log.reader()) as reader:
        reader.pin(taken_by(name), Lsn(1))
    topics.delete_records(name, 1, 3)  # one more
    error = followed.ended(name)
    assert f"partition 1 of the topic {name} begins at 3, and 2 is still to be read" in error.message
    assert followed.upto(name) == [3, 2]


def test_messages_that_were_taken_are_needed_until_the_base_tables_have_them(tmp_path: Path, topics: Topics) -> None:
    followed, name = taken(tmp_path, topics, 3, 2)
    topics.fill(name, 1, 1)
    followed.run_until(lambda: followed.upto(name) == [4, 3])
    with closing(followed.log.reader()) as reader:
        reader.pin(taken_by(name), Lsn(1))
        reader.pin("tables", Lsn(0))  # history that Kafka need not keep
        with followed.running():
            topics.delete_records(name, 0, 3)
            topics.fill(name, 1, 0)
            followed.until(lambda: followed.upto(name) == [5, 3])
            topics.delete_records(name, 0, 4)
            followed.until(lambda: followed.error(name) is not None)
    error = followed.error(name)
    assert error is not None
    assert f"partition 0 of the topic {name} begins at 4, and 3 is still to be read" in error.message


def test_without_base_tables_everything_is_needed(tmp_path: Path, topics: Topics) -> None:
    followed, name = taken(tmp_path, topics, 3, 2)
    topics.delete_records(name, 0, 1)
    assert f"partition 0 of the topic {name} begins at 1, and 0 is still to be read" in followed.ended(name).message


@pytest.mark.deep
def test_a_broker_that_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_kafka(tmp_path / "kafka") as own:
        require_waiting(tmp_path, own, monkeypatch)


def require_waiting(tmp_path: Path, own: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow a topic of a broker that is killed and started again."""
    topics = Topics(own)
    patience = 60.0
    monkeypatch.setattr(
        topic_offsets, "TopicsClient", lambda *told, **more: TopicsClient(*told, **more, patience=patience)
    )
    followed, name = taken(tmp_path, topics, 3, 2)
    topics.fill(name, 1, 1)
    patience = 0.5
    try:
        with pytest.raises(TransientError, match="cannot be read"), followed.running():
            followed.until(lambda: followed.upto(name) == [4, 3])
            own.kill()
            followed.until(lambda: False)
        with pytest.raises(TransientError, match="cannot be read"):
            followed.run_until(lambda: False)
    finally:
        patience = 60.0
        with followed.running():  # it comes back while it is waited for
            own.start()
            topics.fill(name, 1, 1)
            followed.until(lambda: followed.upto(name) == [5, 4])
    assert followed.error(name) is None
    require_whole(followed, name)


@pytest.mark.deep
def test_a_broker_that_stalls_while_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client then answers with offsets that are none: no sign of lost messages, nor of all that is kept."""
    with start_kafka(tmp_path / "kafka", session_seconds=30) as own:
        topics = Topics(own)
        followed, name = taken(tmp_path, topics, 3, 2)
        monkeypatch.setattr(
            topic_offsets, "TopicsClient", lambda *told, **more: TopicsClient(*told, **more, patience=1.0)
        )
        for expected, asked in ([4, 3], topic_offsets._LATEST), ([5, 4], topic_offsets._EARLIEST):
            topics.fill(name, 1, 1)
            with stalling(own, asked), pytest.raises(TransientError, match="no offset"):
                until_taken(followed, name, expected)
            until_taken(followed, name, expected)
            assert followed.error(name) is None
    require_whole(followed, name)


def until_taken(followed: Followed, name: str, expected: list[int]) -> None:
    """Run until so much of a topic was taken, or it has ended."""
    followed.run_until(lambda: followed.upto(name) == expected or followed.error(name) is not None)


@contextmanager
def stalling(own: KafkaBroker, asked: object) -> Iterator[None]:
    """Let a broker stand still while it is asked for these offsets: once a run has begun, and until that is over."""
    pid, whole, looks = own.pid, TopicsClient._listed, itertools.count()
    assert pid is not None

    def listed(client: TopicsClient, topics: Mapping[str, int], which: OffsetSpec) -> dict[str, tuple[int, ...]]:
        if next(looks) < 2 or which is not asked:
            return whole(client, topics, which)
        os.kill(pid, signal.SIGSTOP)
        try:
            return whole(client, topics, which)
        finally:
            os.kill(pid, signal.SIGCONT)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TopicsClient, "_listed", listed)
        yield
