"""A local Kafka broker of one node, for tests and experiments.

::

    kafka.lock ─▶ jars in the cache (downloaded once and verified, like Spark's)
                    └─▶ start_kafka(folder) ─▶ format folder/data ─▶ java kafka.Kafka ─▶ ready on 127.0.0.1
                                                     watch (sh) ── kill -9 when this process ends ───┘

Formatting needs no JVM: `kafka.checkpoint` is a copy of what ``StorageTool format`` of this Kafka version writes, the
feature levels of a new cluster. A test compares the two.

The broker listens on the loopback interface only, and keeps its ports as long as its object exists: clients reconnect
after `restart`. One listener has no authentication; `guarded` adds listeners with SASL and TLS. All data is in
`folder`, which is not removed: a broker that is started there again has the same topics. It runs as the user of this
process, root included. Its output is in ``folder/broker.log``.
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
from penstock.testing.kafka_security import SecureListeners
from penstock.testing.ports import free_ports

__all__ = ["KafkaBroker", "bootstrap_checkpoint", "start_kafka"]

_MEGABYTES = 256
_NODE = 1
_ONE_OF_EACH = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def start_kafka(folder: Path, *, guarded: bool = False, session_seconds: int = 2) -> KafkaBroker:
    """Start a broker with its data in `folder`, and return when it is ready.

    After a crash it cannot restart within `session_seconds`. A broker that is suspended for longer, as on a busy
    machine, is fenced for a short time and rejects requests: use a long session for a broker that is never killed.
    """
    broker = KafkaBroker(folder, guarded=guarded, session_seconds=session_seconds)
    broker.start()
    return broker


class KafkaBroker(JavaServer):
    """A broker process."""

    NAME, LOG, READY_SECONDS = "the Kafka broker", "broker.log", 60.0

    def __init__(self, folder: Path, *, guarded: bool = False, session_seconds: int = 2) -> None:
        super().__init__(folder)
        self._session_seconds = session_seconds
        self._port, self._controller = free_ports()
        self._doors = SecureListeners(self._folder) if guarded else None

    @property
    def bootstrap(self) -> str:
        """The host and port for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def doors(self) -> SecureListeners:
        """The listeners with SASL and TLS of a broker that has them."""
        assert self._doors is not None, "start it with guarded=True"
        return self._doors

    def add_user(self, name: str, password: str) -> None:
        """Add a user for the SASL listener."""
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
            # After a crash the controller rejects the broker until its previous session has expired.
            "broker.session.timeout.ms": self._session_seconds * 1000,
            "broker.heartbeat.interval.ms": 500,
            "auto.create.topics.enable": "false",
            **(self._doors.properties() if self._doors else {}),
        }

    def _format(self) -> None:
        """Write the files of ``StorageTool format``: the first records of the metadata log, then `meta.properties`."""
        data = self._folder / "data"
        try:
            data.mkdir(exist_ok=True)
            (data / "bootstrap.checkpoint").write_bytes(bootstrap_checkpoint())
            (data / "meta.properties").write_text(_meta_properties(), encoding="utf-8")
        except OSError as error:
            message = f"Kafka storage in {self._folder} could not be formatted: {error.strerror}"
            raise DefiniteError(message, "Use a folder that is writable and has free disk space.") from error

    def _answers(self) -> bool:
        """Return whether the broker is ready; probe the port first, as a client that finds it closed backs off."""
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
