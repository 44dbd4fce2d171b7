"""A Kafka broker on this machine: real, of one node, to test against and to try things out.

::

    kafka.lock ─▶ jars in the cache (fetched once, checked, as Spark's are)
                    └─▶ start_kafka(folder) ─▶ format folder/data ─▶ java kafka.Kafka ─▶ answers on 127.0.0.1
                                                     watch (sh) ── kill -9 when this process is gone ──┘

It listens on the loopback interface alone, and on the same ports for as long as its handle lives: clients find it again
after `restart`. One door is open, without authentication; `guarded` adds doors with logins and TLS. Everything it keeps
is in `folder`, which stays; starting there again finds the same topics. It runs as whoever starts it, root included.
What it says is in ``folder/broker.log``.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import DefiniteError
from penstock.testing.java_server import JavaServer, of_jars
from penstock.testing.kafka_security import GuardedDoors
from penstock.testing.ports import free_ports

__all__ = ["KafkaBroker", "start_kafka"]

_MEGABYTES = 256
_ONE_OF_EACH = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def start_kafka(folder: Path, *, guarded: bool = False) -> KafkaBroker:
    """Start a broker that keeps everything in `folder`, and return when it answers."""
    broker = KafkaBroker(folder, guarded=guarded)
    broker.start()
    return broker


class KafkaBroker(JavaServer):
    """A broker with its process."""

    NAME, LOG, READY_SECONDS = "the Kafka broker", "broker.log", 60.0

    def __init__(self, folder: Path, *, guarded: bool = False) -> None:
        super().__init__(folder)
        self._port, self._controller = free_ports()
        self._doors = GuardedDoors(self._folder) if guarded else None

    @property
    def bootstrap(self) -> str:
        """Where clients connect: host and port."""
        return f"127.0.0.1:{self._port}"

    @property
    def doors(self) -> GuardedDoors:
        """The doors with logins and TLS of a broker that has them."""
        assert self._doors is not None, "start it with guarded=True"
        return self._doors

    def add_user(self, name: str, password: str) -> None:
        """Add a user who can log in at the guarded door."""
        self.doors.add_user(self.bootstrap, name, password)

    def _command(self) -> list[str]:
        properties = self._write_properties()
        if not (self._folder / "data" / "meta.properties").exists():
            self._format(properties)
        return [*_java(), "kafka.Kafka", str(properties)]

    def _write_properties(self) -> Path:
        if self._doors is not None:
            self._doors.make_certificates()
        path = self._folder / "broker.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()), encoding="utf-8")
        return path

    def _properties(self) -> dict[str, object]:
        single = {f"{topic}.replication.factor": 1 for topic in _ONE_OF_EACH}
        single |= {f"{topic}.num.partitions": 1 for topic in _ONE_OF_EACH}
        listeners = [f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://127.0.0.1:{self._controller}"]
        listeners += self._doors.listeners() if self._doors else []
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "log.dirs": self._folder / "data",
            **single,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # After a crash the controller refuses the broker until the session of the one that died has run out.
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            "auto.create.topics.enable": "false",
            **(self._doors.properties() if self._doors else {}),
        }

    def _format(self, properties: Path) -> None:
        identity = secrets.token_urlsafe(16)
        tool = [*_java(), "kafka.tools.StorageTool", "format", f"--cluster-id={identity}", "-c", str(properties)]
        done = subprocess.run(tool, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            message = f"Kafka could not format {self._folder}: {done.stderr.strip() or done.stdout.strip()}"
            raise DefiniteError(message, "Name a folder that can be written to, with room on its disk.")

    def _answers(self) -> bool:
        """Look for the port first: a client that finds it closed waits longer and longer before it tries again."""
        with suppress(OSError, KafkaException), socket.create_connection(("127.0.0.1", self._port), 1):
            found = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=5)
            return len(found.brokers) == 1
        return False


def _java() -> list[str]:
    return of_jars("kafka.lock", _MEGABYTES)
