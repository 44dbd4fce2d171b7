"""A Kafka broker on this machine: real, of one node, to test against and to try things out.

::

    kafka.lock ─▶ jars in the cache (fetched once, checked, as Spark's are)
                    └─▶ start_kafka(folder) ─▶ format folder/data ─▶ java kafka.Kafka ─▶ answers on 127.0.0.1
                                                     watch (sh) ── kill -9 when this process is gone ──┘

Formatting needs no JVM: `kafka.checkpoint` is what ``StorageTool format`` of this Kafka version writes, the feature
levels of a new cluster. A test compares the two.

It listens on the loopback interface alone, and on the same ports for as long as its handle lives: clients find it again
after `restart`. One door is open, without authentication; `guarded` adds doors with logins and TLS. Everything it keeps
is in `folder`, which stays; starting there again finds the same topics. It runs as whoever starts it, root included.
What it says is in ``folder/broker.log``.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import DefiniteError
from penstock.testing.java_server import JavaServer, of_jars
from penstock.testing.kafka_security import GuardedDoors
from penstock.testing.ports import free_ports

__all__ = ["KafkaBroker", "bootstrap_checkpoint", "start_kafka"]

_MEGABYTES = 256
_NODE = 1
_ONE_OF_EACH = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def start_kafka(folder: Path, *, guarded: bool = False, session_seconds: int = 2) -> KafkaBroker:
    """Start a broker that keeps everything in `folder`, and return when it answers.

    After a crash it cannot start again within `session_seconds`. A broker that is paused for longer, as on a busy
    machine, is fenced for a moment and refuses requests: a long session suits one that is never killed.
    """
    broker = KafkaBroker(folder, guarded=guarded, session_seconds=session_seconds)
    broker.start()
    return broker


class KafkaBroker(JavaServer):
    """A broker with its process."""

    NAME, LOG, READY_SECONDS = "the Kafka broker", "broker.log", 60.0

    def __init__(self, folder: Path, *, guarded: bool = False, session_seconds: int = 2) -> None:
        super().__init__(folder)
        self._session_seconds = session_seconds
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
            self._format()
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
            "node.id": _NODE,
            "controller.quorum.voters": f"{_NODE}@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "log.dirs": self._folder / "data",
            **single,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # After a crash the controller refuses the broker until the session of the one that died has run out.
            "broker.session.timeout.ms": self._session_seconds * 1000,
            "broker.heartbeat.interval.ms": 500,
            "auto.create.topics.enable": "false",
            **(self._doors.properties() if self._doors else {}),
        }

    def _format(self) -> None:
        """Write what ``StorageTool format`` writes: the metadata log's first records, then what says they are there."""
        data = self._folder / "data"
        try:
            data.mkdir(exist_ok=True)
            (data / "bootstrap.checkpoint").write_bytes(bootstrap_checkpoint())
            (data / "meta.properties").write_text(_meta_properties(), encoding="utf-8")
        except OSError as error:
            message = f"Kafka storage in {self._folder} could not be formatted: {error.strerror}"
            raise DefiniteError(message, "Use a folder that is writable and has free disk space.") from error

    def _answers(self) -> bool:
        """Look for the port first: a client that finds it closed waits longer and longer before it tries again."""
        with suppress(OSError, KafkaException), socket.create_connection(("127.0.0.1", self._port), 1):
            found = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=5)
            return len(found.brokers) == 1
        return False


def bootstrap_checkpoint() -> bytes:
    """Return the first metadata records of a new cluster: its feature levels."""
    return (files("penstock.testing") / "kafka.checkpoint").read_bytes()


def _meta_properties() -> str:
    """Identify a new cluster and its only data directory."""
    cluster, directory = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
    return f"version=1\nnode.id={_NODE}\ncluster.id={cluster}\ndirectory.id={directory}\n"


def _java() -> list[str]:
    return of_jars("kafka.lock", _MEGABYTES)
