"""What happens to topics that are followed, on a real broker: recognised before a tick is made, and never a gap."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from tests.sources.kafka.conftest import Guarded
from tests.sources.kafka.followed import Followed, Topics, require_whole

from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sources.kafka import observing
from penstock.sources.kafka.observing import TopicsClient
from penstock.sources.kafka.ticks import taken_by


@pytest.fixture
def topics(guarded: Guarded) -> Topics:
    return Topics(guarded.broker)


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


def test_a_broker_that_dies_and_comes_back(tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    patience = 60.0
    monkeypatch.setattr(observing, "TopicsClient", lambda *told, **more: TopicsClient(*told, **more, patience=patience))
    followed, name = taken(tmp_path, topics, 3, 2)
    topics.fill(name, 1, 1)
    patience = 0.5
    try:
        with pytest.raises(TransientError, match="cannot be read"), followed.running():
            followed.until(lambda: followed.upto(name) == [4, 3])
            topics.broker.kill()
            followed.until(lambda: False)
        with pytest.raises(TransientError, match="cannot be read"):
            followed.run_until(lambda: False)
    finally:
        patience = 60.0
        with followed.running():  # it comes back while it is waited for
            topics.broker.start()
            topics.fill(name, 1, 1)
            followed.until(lambda: followed.upto(name) == [5, 4])
    assert followed.error(name) is None
    require_whole(followed, name)
