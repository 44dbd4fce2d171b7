"""The servers shared by all tests of a run: one Kafka broker and one schema registry, started on demand.

::

    pytest process:  ServerOwner ── start once, on the first request ──▶ KafkaBroker, SchemaRegistry (a JVM each)
                         ▲ socket (address and key: workerinput)
    xdist worker:    ServerClient ── handle("broker", folder) ──▶ SharedBroker, a picklable handle

The process that runs pytest owns the servers: the xdist controller, or the only process of a run without xdist. It
stops them at the end of the run; if it dies, their watch processes kill them. A separate thread answers each request,
so that a starting server delays only the tests that wait for it. If a server fails to start, every test that needs it
gets the error; the start is not retried.

Tests cannot stop or restart a shared server, and use topics and subjects with names from `unique`. A test that needs to
stop a server starts a private one.
"""

from __future__ import annotations

import pickle
import secrets
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.testing.java_server import JavaServer
from penstock.testing.kafka import KafkaBroker, SecureListeners, has_openssl, start_kafka
from penstock.testing.registry import register_schema, start_registry

PLUGIN = "penstock-servers"
"""The name under which `ServerOwner` or `ServerClient` is registered with pytest."""


class HasBootstrap(Protocol):
    """A broker to connect to: shared, or private to a test."""

    @property
    def bootstrap(self) -> str:
        """Return the address for clients: host and port."""


@dataclass(frozen=True)
class SharedBroker:
    """The broker of the run. It has secure listeners if openssl is installed."""

    bootstrap: str
    guarded: SecureListeners | None

    @property
    def doors(self) -> SecureListeners:
        """Return the listeners with SASL and TLS; skip the test if openssl is missing."""
        if self.guarded is None:
            pytest.skip("openssl is not installed")
        return self.guarded

    def add_user(self, name: str, password: str) -> None:
        """Add a user for the SASL listener."""
        self.doors.add_user(self.bootstrap, name, password)


@dataclass(frozen=True)
class SharedRegistry:
    """The schema registry of the run."""

    url: str

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Register a schema under a subject; return its id."""
        return register_schema(self.url, subject, text, kind, references)


def unique(name: str) -> str:
    """Return a name for a topic or a subject that no other test uses."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


Start = Callable[[Path], tuple[JavaServer, object]]
"""Starts a server in a folder; returns it with a picklable handle."""


def start_shared_broker(folder: Path) -> tuple[JavaServer, SharedBroker]:
    """Start a broker, with secure listeners if openssl is installed."""
    guarded = has_openssl()
    broker = start_kafka(folder, guarded=guarded, session_seconds=60)  # never killed; busy workers delay it
    return broker, SharedBroker(broker.bootstrap, broker.doors if guarded else None)


class GuardedBroker(KafkaBroker):
    """A broker that creates topics on demand, and on which users of SASL may do what ACLs allow."""

    def _properties(self) -> dict[str, object]:
        return {
            **super()._properties(),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "auto.create.topics.enable": "true",
        }


def start_guarded_broker(folder: Path) -> tuple[JavaServer, SharedBroker]:
    """Start a broker with permissions, which needs openssl."""
    broker = GuardedBroker(folder, guarded=True, session_seconds=60)
    broker.start()
    return broker, SharedBroker(broker.bootstrap, broker.doors)


def start_shared_registry(folder: Path) -> tuple[JavaServer, SharedRegistry]:
    """Start a registry."""
    registry = start_registry(folder)
    return registry, SharedRegistry(registry.url)


SERVERS: Mapping[str, Start] = {
    "broker": start_shared_broker,
    "guarded": start_guarded_broker,
    "registry": start_shared_registry,
}


class StartedOnce:
    """A server that is started by the first request and reused by later ones."""

    def __init__(self, start: Start) -> None:
        self._start, self._lock = start, threading.Lock()
        self._started: tuple[JavaServer, object] | None = None
        self._error: Exception | None = None

    def handle(self, folder: Path) -> object:
        """Return the handle; start the server in `folder` first if needed. Raise the error of a failed start."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._started is None:
                try:
                    self._started = self._start(folder)
                except Exception as error:
                    self._error = error
                    raise
            return self._started[1]

    def stop(self) -> None:
        """Stop the server. If it is still starting, the run was interrupted, and its watch process stops it."""
        if not self._lock.acquire(blocking=False):
            return
        started, self._started = self._started, None
        self._error = RuntimeError("the run is over: its servers are stopped")
        self._lock.release()
        if started is not None:
            started[0].stop()


class ServerOwner:
    """The servers, in the process that runs pytest; a pytest plugin that passes its address to the xdist workers."""

    def __init__(self, servers: Mapping[str, Start] = SERVERS) -> None:
        self._servers = {name: StartedOnce(start) for name, start in servers.items()}
        self._key = secrets.token_bytes(32)
        self._listener: Listener | None = None
        self._accepting: threading.Thread | None = None
        self._stopped = False

    def handle(self, name: str, folder: Path) -> Any:
        """Return the handle of a server; the first request starts it in `folder`."""
        return self._servers[name].handle(folder)

    def address(self) -> tuple[str, int, bytes]:
        """Return host, port and key for `ServerClient`; the first call opens the port."""
        if self._listener is None:
            self._listener = Listener(("127.0.0.1", 0), backlog=64, authkey=self._key)
            self._accepting = threading.Thread(target=self._accept, args=[self._listener], daemon=True)
            self._accepting.start()
        host, port = self._listener.address
        return host, port, self._key

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the address to an xdist worker before it starts."""
        node.workerinput["servers"] = self.address()

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        """Stop the servers."""
        self.stop()

    def stop(self) -> None:
        """Stop answering requests, and stop the servers."""
        self._stopped = True
        if self._listener is not None and self._accepting is not None:
            with suppress(OSError, EOFError):
                Client(self._listener.address, authkey=self._key).close()  # `accept` returns
            self._accepting.join(5)
            self._listener.close()
        for server in self._servers.values():
            server.stop()

    def _accept(self, listener: Listener) -> None:
        while not self._stopped:
            with suppress(OSError, EOFError, AuthenticationError):
                threading.Thread(target=self._answer, args=[listener.accept()], daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, suppress(OSError, EOFError):
            name, folder = connection.recv()
            try:
                connection.send(self.handle(name, Path(folder)))
            except Exception as error:
                connection.send(_picklable(error))


@dataclass(frozen=True)
class ServerClient:
    """The servers of the run, for an xdist worker."""

    host: str
    port: int
    key: bytes

    def handle(self, name: str, folder: Path) -> Any:
        """Return the handle of a server; the first request of any worker starts it, in `folder`."""
        with Client((self.host, self.port), authkey=self.key) as connection:
            connection.send((name, str(folder)))
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def servers_of(config: pytest.Config) -> ServerOwner | ServerClient:
    """Return the plugin for this process."""
    workerinput = getattr(config, "workerinput", None)
    return ServerOwner() if workerinput is None else ServerClient(*workerinput["servers"])


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
