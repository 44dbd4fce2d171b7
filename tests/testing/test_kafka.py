"""A broker for tests: it starts, keeps its data and ports, and ends with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.errors import DefiniteError
from penstock.testing.java_server import of_jars
from penstock.testing.kafka import KafkaBroker, bootstrap_checkpoint, start_kafka
from penstock.testing.waiting import PATIENCE, until

STARTER = """
import sys
from pathlib import Path
from penstock.testing.kafka import start_kafka
print(start_kafka(Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


def topics(broker: KafkaBroker) -> set[str]:
    return set(
        AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(timeout=PATIENCE).topics
    )


def create_topic(broker: KafkaBroker, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.deep
def test_broker_keeps_topics_and_ports_after_a_restart_and_a_crash(tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka") as broker:
        where = broker.bootstrap
        create_topic(broker, "one")
        broker.restart()
        create_topic(broker, "two")
        broker.kill()
        assert broker.pid is None
        broker.start()
        assert broker.bootstrap == where
        assert {"one", "two"} <= topics(broker)
        pid = broker.pid
    assert pid is not None
    assert is_gone(pid)
    broker.stop()  # stopping twice is allowed


@pytest.mark.deep
def test_controller_apart_survives_a_crash_of_the_broker(tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka", apart=True) as broker:
        create_topic(broker, "one")
        controller = broker._apart
        assert controller is not None
        pid = controller.pid
        broker.kill()
        assert pid is not None
        assert pid == controller.pid
        assert not is_gone(pid)
        broker.start()
        assert "one" in topics(broker)
    assert is_gone(pid)


@pytest.mark.deep
def test_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert not is_gone(pid)
        starter.kill()
    until(lambda: is_gone(pid), "the end of the broker")


def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way", encoding="utf-8")
    with pytest.raises(DefiniteError, match="could not be formatted") as caught:
        start_kafka(tmp_path)
    assert "folder" in caught.value.hint


@pytest.mark.deep
def test_storage_is_formatted_like_storage_tool(tmp_path: Path) -> None:
    """After a Kafka upgrade, copy the checkpoint that StorageTool writes to `kafka.checkpoint`."""
    with start_kafka(tmp_path / "penstock_data"):
        properties = (tmp_path / "penstock_data" / "broker.properties").read_text(encoding="utf-8")
    (tmp_path / "tool_data.properties").write_text(
        properties.replace("/penstock_data/", "/tool_data/"), encoding="utf-8"
    )
    tool = [*of_jars(["kafka.lock"], 256), "kafka.tools.StorageTool", "format", "--cluster-id=W1VrVzvhSyC0tV4ELEkJZA"]
    subprocess.run([*tool, "-c", str(tmp_path / "tool_data.properties")], check=True, stdin=subprocess.DEVNULL)
    penstock_data, tool_data = tmp_path / "penstock_data" / "data", tmp_path / "tool_data" / "data"
    assert {path.name for path in tool_data.iterdir()} == {"bootstrap.checkpoint", "meta.properties"}
    assert records(bootstrap_checkpoint()) == records((tool_data / "bootstrap.checkpoint").read_bytes())
    assert (penstock_data / "bootstrap.checkpoint").read_bytes() == bootstrap_checkpoint()
    assert settings(penstock_data / "meta.properties").keys() == settings(tool_data / "meta.properties").keys()
    for name in ("version", "node.id"):
        assert settings(penstock_data / "meta.properties")[name] == settings(tool_data / "meta.properties")[name]


def records(log: bytes) -> list[bytes]:
    """Return the record batches of a log segment, without the fields that differ between runs."""
    batches, at = [], 0
    while at < len(log):
        end = at + 12 + int.from_bytes(log[at + 8 : at + 12])
        batches.append(log[at : at + 17] + log[at + 21 : at + 27] + log[at + 43 : end])
        at = end
    return batches


def settings(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
