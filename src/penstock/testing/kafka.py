"""A local Kafka broker of one node, for tests and experiments.

::

    kafka.lock ─▶ jars in the cache (downloaded once and verified, like Spark's)
                    └─▶ start_kafka(folder) ─▶ format folder/data ─▶ java kafka.Kafka ─▶ ready on 127.0.0.1
                                                     watch (sh) ── kill -9 when this process ends ───┘

Formatting needs no JVM: `kafka.checkpoint` is a copy of what ``StorageTool format`` of this Kafka version writes, the
feature levels of a new cluster. A test compares the two.

The broker listens on the loopback interface only, and keeps its ports as long as its object exists: clients reconnect
after `restart`. All data is in `folder`, which is not removed: a broker that is started there again has the same
topics. It runs as the user of this process, root included. Its output is in ``folder/broker.log``.

**Brokers that are killed.** Broker and controller are one process, unless the controller is `apart`. Killed together,
they start as if the broker had never been away; then it is fenced for a moment, and a transaction whose end was decided
but not written is lost: consumers wait for it forever (Kafka 4.3.1). With the controller `apart`, as in production, the
broker is fenced before it starts again, and transactions end.

One listener has no authentication; `guarded` adds two secure listeners, with certificates of an insecure authority that
``openssl`` creates::

    folder/tls/ca.crt ─ signs ─▶ server.crt (127.0.0.1, localhost)     client.crt, client.key
    SASL_SSL://  SCRAM-SHA-256, SCRAM-SHA-512 (users added by tests), PLAIN (one predefined user)
    SSL://       requires a client certificate signed by the authority

The broker's folder then contains keys and passwords in plain text: it exists only for a test.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from penstock.errors import DefiniteError
from penstock.testing.java_server import JavaServer, free_ports, of_jars

__all__ = [
    "PLAIN_USER",
    "KafkaBroker",
    "KafkaController",
    "SecureListeners",
    "bootstrap_checkpoint",
    "has_openssl",
    "lock_key",
    "make_authority",
    "make_certificate",
    "start_kafka",
]

_MEGABYTES = 256
_NODE, _CONTROLLER_NODE = 1, 100
_ONE_OF_EACH = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def start_kafka(folder: Path, *, guarded: bool = False, session_seconds: int = 2, apart: bool = False) -> KafkaBroker:
    """Start a broker with its data in `folder`, and return when it is ready.

    After a crash it cannot restart within `session_seconds`. A broker that is suspended for longer, as on a busy
    machine, is fenced for a short time and rejects requests: use a long session for a broker that is never killed.
    With `apart`, the controller is another process, which `KafkaBroker.kill` spares.
    """
    broker = KafkaBroker(folder, guarded=guarded, session_seconds=session_seconds, apart=apart)
    broker.start()
    return broker


class KafkaBroker(JavaServer):
    """A broker process."""

    NAME, LOG, READY_SECONDS = "the Kafka broker", "broker.log", 60.0

    def __init__(self, folder: Path, *, guarded: bool = False, session_seconds: int = 2, apart: bool = False) -> None:
        super().__init__(folder)
        self._session_seconds = session_seconds
        self._port, self._controller = free_ports()
        self._cluster = secrets.token_urlsafe(16)
        at = folder / "controller"
        self._apart = KafkaController(at, self._controller, self._cluster, session_seconds) if apart else None
        self._killed_at: float | None = None
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

    def start(self) -> None:
        """Start the broker, if it is stopped; with the controller apart, only after its last session has expired."""
        if self._apart is not None:
            self._apart.start()
            if self._killed_at is not None:
                time.sleep(max(0.0, self._killed_at + self._session_seconds + 1.0 - time.monotonic()))
        super().start()

    def stop(self) -> None:
        """Stop the broker cleanly, then its controller."""
        super().stop()
        if self._apart is not None:
            self._apart.stop()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as in a crash; a controller that is apart continues."""
        super().kill()
        self._killed_at = time.monotonic()

    def _command(self) -> list[str]:
        properties = self._write_properties()
        if not (self._folder / "data" / "meta.properties").exists():
            _format(self._folder, _NODE, self._cluster)
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
        listeners = [f"PLAINTEXT://{self.bootstrap}"]
        listeners += [] if self._apart else [f"CONTROLLER://127.0.0.1:{self._controller}"]
        listeners += self._doors.listeners() if self._doors else []
        return {
            "process.roles": "broker" if self._apart else "broker,controller",
            "node.id": _NODE,
            "controller.quorum.voters": f"{_CONTROLLER_NODE if self._apart else _NODE}@127.0.0.1:{self._controller}",
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

    def _answers(self) -> bool:
        """Return whether the broker is ready; probe the port first, as a client that finds it closed backs off."""
        with suppress(OSError, KafkaException), socket.create_connection(("127.0.0.1", self._port), 1):
            found = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=5)
            return len(found.brokers) == 1
        return False


class KafkaController(JavaServer):
    """The process of a controller: it survives when its broker is killed."""

    NAME, LOG, READY_SECONDS = "the Kafka controller", "controller.log", 60.0

    def __init__(self, folder: Path, port: int, cluster: str, session_seconds: int) -> None:
        super().__init__(folder)
        self._port, self._cluster, self._session_seconds = port, cluster, session_seconds

    def _command(self) -> list[str]:
        if not (self._folder / "data" / "meta.properties").exists():
            _format(self._folder, _CONTROLLER_NODE, self._cluster)
        properties = self._folder / "controller.properties"
        lines = {
            "process.roles": "controller",
            "node.id": _CONTROLLER_NODE,
            "controller.quorum.voters": f"{_CONTROLLER_NODE}@127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://127.0.0.1:{self._port}",
            "log.dirs": self._folder / "data",
            "broker.session.timeout.ms": self._session_seconds * 1000,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        return [*_java(), "kafka.Kafka", str(properties)]

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False


def _format(folder: Path, node: int, cluster: str) -> None:
    """Write the files of ``StorageTool format``: the first records of the metadata log, then `meta.properties`."""
    data = folder / "data"
    try:
        data.mkdir(exist_ok=True)
        (data / "bootstrap.checkpoint").write_bytes(bootstrap_checkpoint())
        (data / "meta.properties").write_text(_meta_properties(node, cluster), encoding="utf-8")
    except OSError as error:
        message = f"Kafka storage in {folder} could not be formatted: {error.strerror}"
        raise DefiniteError(message, "Use a folder that is writable and has free disk space.") from error


def bootstrap_checkpoint() -> bytes:
    """Return the first metadata records of a new cluster: its feature levels."""
    return (files("penstock.testing") / "kafka.checkpoint").read_bytes()


def _meta_properties(node: int, cluster: str) -> str:
    """Identify a cluster, a node of it, and its only data directory."""
    return f"version=1\nnode.id={node}\ncluster.id={cluster}\ndirectory.id={secrets.token_urlsafe(16)}\n"


def _java() -> list[str]:
    return of_jars(["kafka.lock"], _MEGABYTES)


# -- secure listeners --------------------------------------------------------------------------------------------------

PLAIN_USER = ("plain", "plain-password")
"""The user of the mechanism PLAIN, and the password."""

_MODULES = "org.apache.kafka.common.security"
_SCRAM = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


class SecureListeners:
    """The secure listeners with their ports and certificates, in addition to the broker's plaintext listener."""

    def __init__(self, folder: Path) -> None:
        self.tls = folder / "tls"
        self.sasl_port, self.ssl_port = free_ports()

    def make_certificates(self) -> None:
        """Create the certificates of authority, server and client, unless they exist."""
        if (self.tls / "client.crt").exists():
            return
        self.tls.mkdir(parents=True, exist_ok=True)
        make_authority(self.tls)
        make_certificate(self.tls, "server", "broker", alternative="IP:127.0.0.1,DNS:localhost")
        make_certificate(self.tls, "client", "client")
        joined = "".join((self.tls / name).read_text(encoding="utf-8") for name in ("server.key", "server.crt"))
        (self.tls / "server.pem").write_text(joined, encoding="utf-8")

    def listeners(self) -> list[str]:
        """Return the entries of the broker's property ``listeners``."""
        return [f"SASL_SSL://127.0.0.1:{self.sasl_port}", f"SSL://127.0.0.1:{self.ssl_port}"]

    def properties(self) -> dict[str, object]:
        """Return the broker properties of the listeners."""
        sasl = "listener.name.sasl_ssl"
        user, password = PLAIN_USER
        plain = f'{_MODULES}.plain.PlainLoginModule required user_{user}="{password}";'
        return {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            f"{sasl}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{sasl}.plain.sasl.jaas.config": plain,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.tls / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.tls / "ca.crt",
            "listener.name.ssl.ssl.client.auth": "required",
        }

    @staticmethod
    def add_user(bootstrap: str, name: str, password: str) -> None:
        """Add a user for both SCRAM mechanisms, through the plaintext listener."""
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for mechanism in _SCRAM:  # one request each: a request may contain a user only once
            wanted: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
            ]
            client.alter_user_scram_credentials(wanted)[name].result(20)


# -- certificates ------------------------------------------------------------------------------------------------------

_KEY = ("-newkey", "rsa:2048", "-nodes")


def has_openssl() -> bool:
    """Return whether ``openssl`` is installed."""
    return shutil.which("openssl") is not None


def make_authority(folder: Path, name: str = "ca") -> Path:
    """Create ``NAME.crt`` and ``NAME.key``; return the certificate."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    _openssl("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN=penstock {name}", "-keyout", key, "-out", certificate)
    return certificate


def make_certificate(folder: Path, name: str, subject: str, *, alternative: str = "") -> tuple[Path, Path]:
    """Create a certificate signed by the authority ``ca`` of the folder; return it and its key."""
    key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
    _openssl("req", *_KEY, "-subj", f"/CN={subject}", "-keyout", key, "-out", request)
    extensions = folder / f"{name}.ext"
    extension = f"subjectAltName={alternative}\n" if alternative else "basicConstraints=CA:FALSE\n"
    extensions.write_text(extension, encoding="utf-8")
    _openssl("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-days", "2",
             "-CAcreateserial", "-extfile", extensions, "-out", certificate)  # fmt: skip
    key.chmod(0o600)
    return certificate, key


def lock_key(key: Path, locked: Path, passphrase: str) -> None:
    """Write a copy of a key that is encrypted with a passphrase."""
    _openssl("rsa", "-in", key, "-aes256", "-passout", f"pass:{passphrase}", "-out", locked)
    locked.chmod(0o600)


def _openssl(*arguments: str | Path) -> None:
    if not has_openssl():
        message = "openssl is not installed"
        raise DefiniteError(message, "Install it, on Debian with: apt install openssl")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
