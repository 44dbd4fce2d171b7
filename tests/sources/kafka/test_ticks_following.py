"""Topics of a real broker, followed: what they gain becomes ticks, each message in exactly one, whatever dies."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.sources.kafka.conftest import Guarded
from tests.sources.kafka.followed import Followed, Topics, options_of, require_whole

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError
from penstock.sources.kafka.first_offsets import beginning
from penstock.sources.kafka.tick_instance import FollowingConfig
from penstock.sources.kafka.topic_start import Start, start_of
from penstock.sources.kafka.with_options import Beginning, KafkaWithOptions
from penstock.testing.waiting import PATIENCE


@contextmanager
def written_on(topics: Topics, names: list[str]) -> Iterator[None]:
    """Write to topics meanwhile, a few messages at a time."""
    stop = threading.Event()

    def work() -> None:
        for turn in itertools.count():
            if stop.is_set():
                return
            for name in names:
                topics.fill(name, *[(turn + partition) % 3 for partition in range(2)])
            time.sleep(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ends_of(topics: Topics, name: str) -> list[int]:
    start = Start(others=Beginning.LATEST)
    return list(beginning(options_of(topics.broker, name), KafkaWithOptions.given(), "end", name, start).offsets)


def moved_beyond(followed: Followed, position: int) -> bool:
    return followed.durable() > position


def test_killed_again_and_again_under_a_running_producer(tmp_path: Path, topics: Topics) -> None:
    names = [topics.make(), topics.make()]
    followed = Followed(tmp_path, topics.broker, names)
    program = (
        "import sys, threading; from pathlib import Path; from penstock.changelog.sqlite.log import SqliteLog;"
        "from penstock.sources.kafka.tick_instance import FollowingConfig, FollowingInstance;"
        "folder, config = Path(sys.argv[1]), FollowingConfig.model_validate_json(sys.argv[2]);"
        "FollowingInstance(config, SqliteLog(folder / 'log.db'), folder / 'state')"
        ".run(threading.Event(), lambda: print('ready', flush=True))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), followed.config.model_dump_json()]
    last = 0
    with written_on(topics, names):
        for life in range(3):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline()
                followed.until(partial(moved_beyond, followed, last))
                time.sleep(0.1 + 0.07 * life)  # so that kills find it at different points
                process.kill()
            last = followed.durable()
    for name in names:
        topics.fill(name, 1, 1)
    ends = {name: ends_of(topics, name) for name in names}
    followed.run_until(lambda: all(followed.upto(name) == ends[name] for name in names))
    assert last >= 3
    for name in names:
        require_whole(followed, name)
        assert followed.error(name) is None
    assert set(followed.ticks(names[0])["at"].to_pylist()) & set(followed.ticks(names[1])["at"].to_pylist())


def reached(followed: Followed, name: str, upto: list[int]) -> bool:
    return followed.upto(name) == upto


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_around_a_tick(tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    publish = SqliteLogWriter.publish
    due = {1, 2, 4}

    def crashing(self: SqliteLogWriter, chunks: Any, durable: Any, **told: Any) -> None:
        if chunks and durable in due:
            due.remove(durable)
            if after:
                publish(self, chunks, durable, **told)
            raise KeyboardInterrupt
        publish(self, chunks, durable, **told)

    monkeypatch.setattr(SqliteLogWriter, "publish", crashing)
    name = topics.make()
    followed = Followed(tmp_path, topics.broker, [name])
    for turn in range(1, 6):
        topics.fill(name, 1, turn % 2)
        expected = [turn, (turn + 1) // 2]
        while followed.upto(name) != expected:
            with suppress(KeyboardInterrupt):
                followed.run_until(partial(reached, followed, name, expected))
    assert not due
    require_whole(followed, name)
    assert followed.durable() == 5


def test_one_tick_for_a_moment_and_none_while_nothing_comes(tmp_path: Path, topics: Topics) -> None:
    name = topics.make()
    topics.fill(name, 500, 500)
    followed = Followed(tmp_path, topics.broker, [name], timestamp_frequency_ms=300)
    before = datetime.now(UTC)

    def passed(moment: datetime) -> bool:
        with closing(followed.log.reader()) as reader:
            return reader.frontiers().passed > moment

    with followed.running():
        followed.until(lambda: followed.durable() == 1)
        begun, after = time.monotonic(), datetime.now(UTC)
        with written_on(topics, [name]):
            followed.until(lambda: followed.durable() >= 4)
        ticks, turns = followed.durable(), (time.monotonic() - begun) / 0.3
        end = ends_of(topics, name)
        followed.until(lambda: followed.upto(name) == end)
        ended, quiet = followed.durable(), datetime.now(UTC)
        followed.until(lambda: passed(quiet))
        assert followed.durable() == ended
    assert ticks <= turns + 2
    with closing(followed.log.reader()) as reader:
        assert reader.position_at(before) == 0
        assert reader.position_at(after) == 1
    require_whole(followed, name)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(tmp_path: Path, topics: Topics, level: str) -> None:
    name = topics.make(1)
    followed = Followed(tmp_path, topics.broker, [name], isolation_level=level)
    writer = Producer({**topics.client, "transactional.id": f"{name}-writer"})
    writer.init_transactions(PATIENCE)
    seen: list[list[int]] = []

    def look(upto: int) -> None:
        followed.until(lambda: followed.upto(name) == [upto])
        followed.until_idle()
        seen.append(followed.upto(name))

    open_is_seen = level == "read_uncommitted"
    with followed.running():
        topics.fill(name, 2)
        look(2)
        writer.begin_transaction()
        writer.produce(name, b"t")
        assert writer.flush(PATIENCE) == 0
        topics.fill(name, 3)  # behind the open transaction, offsets 3 to 5
        look(6 if open_is_seen else 2)
        writer.commit_transaction(PATIENCE)
        look(7)  # the mark of the commit has an offset, too
        writer.begin_transaction()
        writer.produce(name, b"t")
        assert writer.flush(PATIENCE) == 0
        look(8 if open_is_seen else 7)
        writer.abort_transaction(PATIENCE)
        look(9)
    assert seen == [[2], [6 if open_is_seen else 2], [7], [8 if open_is_seen else 7], [9]]
    require_whole(followed, name)


def test_partitions_that_are_added_are_followed_from_their_first_message(tmp_path: Path, topics: Topics) -> None:
    name = topics.make(2)
    topics.fill(name, 5, 5)
    followed = Followed(tmp_path, topics.broker, [name], start_offset="latest")
    with followed.running():
        topics.fill(name, 1, 0)
        followed.until(lambda: followed.upto(name) == [6, 5])
        topics.add_partitions(name, 4)
        followed.until(lambda: followed.upto(name) == [6, 5, 0, 0])
        topics.fill(name, 0, 0, 2, 3)
        followed.until(lambda: followed.upto(name) == [6, 5, 2, 3])
    topics.add_partitions(name, 5)
    topics.fill(name, 1, 1, 1, 1, 1)
    followed.run_until(lambda: followed.upto(name) == [7, 6, 3, 4, 1])
    read = {each.partition: (each.first, each.last) for each in followed.ranges(name)}
    assert read == {0: (5, 7), 1: (5, 6), 2: (0, 3), 3: (0, 4), 4: (0, 1)}


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({}, (1, 0)),
        ({"start_offset": "latest"}, (3, 4)),
        ({"start_offset": (2, 3)}, (2, 3)),
        ({"start_offset": 3}, (3, 0)),
    ],
    ids=["earliest", "latest", "offsets", "some offsets"],
)
def test_where_following_begins(topics: Topics, options: dict[str, Any], offsets: tuple[int, ...]) -> None:
    name = topics.make(2)
    topics.fill(name, 3, 4)
    topics.delete_records(name, 0, 1)
    how = KafkaWithOptions.given(**options)
    begun = beginning(options_of(topics.broker, name), how, "s", name, start_of(how, datetime.now(UTC)))
    assert (begun.name, begun.offsets) == (name, offsets)
    assert begun.id


@pytest.mark.parametrize("offset", [0, 4])
def test_where_it_cannot_begin(topics: Topics, offset: int) -> None:
    name = topics.make(1)
    topics.fill(name, 3)
    topics.delete_records(name, 0, 1)
    with pytest.raises(DefiniteError, match=f"cannot begin at {offset} in partition 0 of the topic {name}") as caught:
        beginning(options_of(topics.broker, name), KafkaWithOptions.given(), "s", name, Start(offsets=(offset,)))
    assert "from 1 to 3" in caught.value.hint


def test_a_refused_login_ends_the_run_and_not_the_tables(tmp_path: Path, guarded: Guarded, topics: Topics) -> None:
    name = topics.make()
    followed = Followed(tmp_path, topics.broker, [name])
    (tmp_path / "wrong").write_text("c4nary-wrong")
    wrong = guarded.login(sasl_password=f"file:{tmp_path / 'wrong'}")
    followed.config = FollowingConfig.of("clicks", guarded.what(), wrong, followed.config.topics)
    with pytest.raises(DefiniteError, match="cannot be read") as caught:
        followed.run_until(lambda: False)
    assert "sasl_password" in caught.value.hint
    assert "c4nary" not in str(caught.value)
    followed.config = FollowingConfig.of("clicks", guarded.what(), guarded.login(), followed.config.topics)
    topics.fill(name, 1, 1)
    followed.run_until(lambda: followed.upto(name) == [1, 1])
    assert followed.error(name) is None
