"""Capture of topics of a real broker: each message is in exactly one tick, also after crashes."""

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
from tests.sources.kafka.conftest import SecureBroker
from tests.sources.kafka.topic_capture import TopicCapture, Topics, options_of, require_contiguous

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError
from penstock.sources.kafka.creation import resolve_start
from penstock.sources.kafka.tick_instance import TickConfig
from penstock.sources.kafka.ticks import tick_table
from penstock.sources.kafka.topic_start import Start, start_of
from penstock.sources.kafka.with_options import KafkaWithOptions, StartPoint
from penstock.testing.waiting import PATIENCE


@contextmanager
def background_writer(topics: Topics, names: list[str]) -> Iterator[None]:
    """Write to topics in the background, a few messages at a time."""
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
    start = Start(others=StartPoint.LATEST)
    return list(resolve_start(options_of(topics.broker, name), KafkaWithOptions.given(), "end", name, start).offsets)


def advanced_beyond(capture: TopicCapture, position: int) -> bool:
    return capture.durable() > position


def test_repeated_kills_under_a_running_producer(tmp_path: Path, topics: Topics) -> None:
    names = [topics.make(), topics.make()]
    capture = TopicCapture(tmp_path, topics.broker, names)
    program = (
        "import sys, threading; from pathlib import Path; from penstock.changelog.sqlite.log import SqliteLog;"
        "from penstock.sources.kafka.tick_instance import TickConfig, TickInstance;"
        "folder, config = Path(sys.argv[1]), TickConfig.model_validate_json(sys.argv[2]);"
        "TickInstance(config, SqliteLog(folder / 'log.db'), folder / 'state')"
        ".run(threading.Event(), lambda: print('ready', flush=True))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), capture.config.model_dump_json()]
    last = 0
    with background_writer(topics, names):
        for life in range(3):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline()
                capture.until(partial(advanced_beyond, capture, last))
                time.sleep(0.1 + 0.07 * life)  # so that kills hit it at different points
                process.kill()
            last = capture.durable()
    for name in names:
        topics.fill(name, 1, 1)
    ends = {name: ends_of(topics, name) for name in names}
    capture.run_until(lambda: all(capture.upto(name) == ends[name] for name in names))
    assert last >= 3
    for name in names:
        require_contiguous(capture, name)
        assert capture.error(name) is None
    assert set(capture.ticks(names[0])["at"].to_pylist()) & set(capture.ticks(names[1])["at"].to_pylist())


def reached(capture: TopicCapture, name: str, upto: list[int]) -> bool:
    return capture.upto(name) == upto


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_around_a_tick(tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    publish = SqliteLogWriter.publish
    due = {1, 2, 4}

    def publish_or_crash(self: SqliteLogWriter, chunks: Any, durable: Any, **arguments: Any) -> None:
        if chunks and durable in due:
            due.remove(durable)
            if after:
                publish(self, chunks, durable, **arguments)
            raise KeyboardInterrupt
        publish(self, chunks, durable, **arguments)

    monkeypatch.setattr(SqliteLogWriter, "publish", publish_or_crash)
    name = topics.make()
    capture = TopicCapture(tmp_path, topics.broker, [name])
    for turn in range(1, 6):
        topics.fill(name, 1, turn % 2)
        expected = [turn, (turn + 1) // 2]
        while capture.upto(name) != expected:
            with suppress(KeyboardInterrupt):
                capture.run_until(partial(reached, capture, name, expected))
    assert not due
    require_contiguous(capture, name)
    assert capture.durable() == 5
    with closing(capture.log.reader()) as reader:
        assert reader.changes() == {tick_table(name).name: 5 + 3}, "messages, each counted once"


def test_one_tick_per_interval_and_none_while_idle(tmp_path: Path, topics: Topics) -> None:
    name = topics.make()
    topics.fill(name, 500, 500)
    capture = TopicCapture(tmp_path, topics.broker, [name], timestamp_frequency_ms=300)
    before = datetime.now(UTC)

    def passed(moment: datetime) -> bool:
        with closing(capture.log.reader()) as reader:
            return reader.frontiers().passed > moment

    with capture.running():
        capture.until(lambda: capture.durable() == 1)
        started, after = time.monotonic(), datetime.now(UTC)
        with background_writer(topics, [name]):
            capture.until(lambda: capture.durable() >= 4)
        ticks, turns = capture.durable(), (time.monotonic() - started) / 0.3
        end = ends_of(topics, name)
        capture.until(lambda: capture.upto(name) == end)
        last_position, quiet = capture.durable(), datetime.now(UTC)
        capture.until(lambda: passed(quiet))
        assert capture.durable() == last_position
    assert ticks <= turns + 2
    with closing(capture.log.reader()) as reader:
        assert reader.position_at(before) == 0
        assert reader.position_at(after) == 1
    require_contiguous(capture, name)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(tmp_path: Path, topics: Topics, level: str) -> None:
    name = topics.make(1)
    capture = TopicCapture(tmp_path, topics.broker, [name], isolation_level=level)
    writer = Producer({**topics.client, "transactional.id": f"{name}-writer"})
    writer.init_transactions(PATIENCE)
    offsets: list[list[int]] = []

    def wait_for_offset(upto: int) -> None:
        capture.until(lambda: capture.upto(name) == [upto])
        capture.until_idle()
        offsets.append(capture.upto(name))

    open_is_visible = level == "read_uncommitted"
    with capture.running():
        topics.fill(name, 2)
        wait_for_offset(2)
        writer.begin_transaction()
        writer.produce(name, b"t")
        assert writer.flush(PATIENCE) == 0
        topics.fill(name, 3)  # after the open transaction, offsets 3 to 5
        wait_for_offset(6 if open_is_visible else 2)
        writer.commit_transaction(PATIENCE)
        wait_for_offset(7)  # the commit marker has an offset, too
        writer.begin_transaction()
        writer.produce(name, b"t")
        assert writer.flush(PATIENCE) == 0
        wait_for_offset(8 if open_is_visible else 7)
        writer.abort_transaction(PATIENCE)
        wait_for_offset(9)
    assert offsets == [[2], [6 if open_is_visible else 2], [7], [8 if open_is_visible else 7], [9]]
    require_contiguous(capture, name)


def test_added_partitions_are_captured_from_their_first_message(tmp_path: Path, topics: Topics) -> None:
    name = topics.make(2)
    topics.fill(name, 5, 5)
    capture = TopicCapture(tmp_path, topics.broker, [name], start_offset="latest")
    with capture.running():
        topics.fill(name, 1, 0)
        capture.until(lambda: capture.upto(name) == [6, 5])
        topics.add_partitions(name, 4)
        capture.until(lambda: capture.upto(name) == [6, 5, 0, 0])
        topics.fill(name, 0, 0, 2, 3)
        capture.until(lambda: capture.upto(name) == [6, 5, 2, 3])
    topics.add_partitions(name, 5)
    topics.fill(name, 1, 1, 1, 1, 1)
    capture.run_until(lambda: capture.upto(name) == [7, 6, 3, 4, 1])
    read = {each.partition: (each.first, each.last) for each in capture.ranges(name)}
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
def test_start_offsets(topics: Topics, options: dict[str, Any], offsets: tuple[int, ...]) -> None:
    name = topics.make(2)
    topics.fill(name, 3, 4)
    topics.delete_records(name, 0, 1)
    how = KafkaWithOptions.given(**options)
    start = resolve_start(options_of(topics.broker, name), how, "s", name, start_of(how, datetime.now(UTC)))
    assert (start.name, start.offsets) == (name, offsets)
    assert start.id


@pytest.mark.parametrize("offset", [0, 4])
def test_start_offset_out_of_range_is_rejected(topics: Topics, offset: int) -> None:
    name = topics.make(1)
    topics.fill(name, 3)
    topics.delete_records(name, 0, 1)
    with pytest.raises(
        DefiniteError, match=f"start offset {offset} is out of range for partition 0 of topic {name}"
    ) as caught:
        resolve_start(options_of(topics.broker, name), KafkaWithOptions.given(), "s", name, Start(offsets=(offset,)))
    assert "from 1 to 3" in caught.value.hint


def test_rejected_login_ends_the_run_without_table_errors(
    tmp_path: Path, secured: SecureBroker, topics: Topics
) -> None:
    name = topics.make()
    capture = TopicCapture(tmp_path, topics.broker, [name])
    (tmp_path / "wrong").write_text("c4nary-wrong")
    wrong = secured.login(sasl_password=f"file:{tmp_path / 'wrong'}")
    capture.config = TickConfig.of("clicks", secured.sql_options(), wrong, capture.config.topics)
    with pytest.raises(DefiniteError, match="could not read") as caught:
        capture.run_until(lambda: False)
    assert "sasl_password" in caught.value.hint
    assert "c4nary" not in str(caught.value)
    capture.config = TickConfig.of("clicks", secured.sql_options(), secured.login(), capture.config.topics)
    topics.fill(name, 1, 1)
    capture.run_until(lambda: capture.upto(name) == [1, 1])
    assert capture.error(name) is None
