"""A broker to test on: it starts, keeps its data and its ports, and ends with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.errors import DefiniteError
from penstock.testing.kafka import KafkaBroker, start_kafka

STARTER = """
import sys
from pathlib import Path
from penstock.testing.kafka import start_kafka
print(start_kafka(Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


def topics(broker: KafkaBroker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(timeout=10).topics)


def make(broker: KafkaBroker, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_keeps_topics_and_ports_over_a_restart_and_a_crash(tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka") as broker:
        where = broker.bootstrap
        make(broker, "one")
        broker.restart()
        make(broker, "two")
        broker.kill()
        assert broker.pid is None
        broker.start()
        assert broker.bootstrap == where
        assert {"one", "two"} <= topics(broker)
        pid = broker.pid
    assert pid is not None
    assert gone(pid)
    broker.stop()  # once more does no harm


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert not gone(pid)
        starter.kill()
    deadline = time.monotonic() + 60
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(pid)


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way", encoding="utf-8")
    with pytest.raises(DefiniteError, match="could not format") as caught:
        start_kafka(tmp_path)
    assert "folder" in caught.value.remedy
