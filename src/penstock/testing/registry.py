"""A schema registry on this machine: a real one (Apicurio), with the interface of Confluent's, to test against.

::

    registry.lock ─▶ zip in the cache (fetched once, checked, as Spark's jars are)
                       └─▶ cache/registry/<revision>-<sha256>/   unpacked once
                              └─▶ start_registry(folder) ─▶ java -jar … ─▶ answers on 127.0.0.1
                                                              watch (sh) ── kill -9 when this process is gone

It listens on the loopback interface alone, keeps its port for as long as its handle lives, and its schemas in `folder`:
after `stop` and `start` it is the same registry. What it says is in ``folder/registry.log``.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.errors import TransientError
from penstock.spark.cache import cache_dir
from penstock.spark.jars import fetched_jars, read_lock
from penstock.spark.java import find_java
from penstock.testing.watch import end, watched

__all__ = ["SchemaRegistry", "start_registry"]

_SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_READY_SECONDS = 180.0


def start_registry(folder: Path) -> SchemaRegistry:
    """Start a registry that keeps everything in `folder`, and return when it answers."""
    registry = SchemaRegistry(folder.absolute())
    registry.start()
    return registry


class SchemaRegistry:
    """A registry with its process; as a context manager it is stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients of Confluent's interface find it."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it, where it was stopped, and wait until it answers."""
        if self._process is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "registry.log").open("ab") as said:
            self._process = subprocess.Popen(
                self._command(), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self._watch = watched(self._process.pid, str(self._folder))
        self._await_answer()

    def stop(self) -> None:
        """Let it end in order."""
        process, self._process = self._process, None
        if process is not None:
            end(process, self._watch, signal.SIGTERM)

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Register a schema under a subject; return its id."""
        body = {"schema": text, "schemaType": kind, "references": references or []}
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return int(json.load(answer)["id"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self) -> list[str]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": f"jdbc:h2:file:{self._folder / 'schemas'}",
        }
        named = [f"-D{name}={value}" for name, value in settings.items()]
        return [str(find_java().executable), *_SMALL, *named, "-jar", str(_program())]

    def _await_answer(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5):  # noqa: S310
                return
            time.sleep(0.1)
        self.stop()
        message = f"the schema registry in {self._folder} did not come up within {_READY_SECONDS:.0f} s"
        raise TransientError(message, f"Read {self._folder / 'registry.log'}, which ends in its reason.")


def _program() -> Path:
    """Return the jar that starts it; fetched and unpacked the first time."""
    [archive] = read_lock("penstock.testing", "registry.lock")
    home = cache_dir() / "registry" / f"{archive.revision}-{archive.sha256[:16]}"
    if not home.is_dir():
        [path] = fetched_jars([archive])
        _unpack(path, home)
    return next(home.glob("*-runner.jar"))


def _unpack(archive: Path, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=home.parent) as scratch:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(scratch)
        with suppress(OSError):  # another process was first
            Path(scratch).rename(home)
        Path(scratch).mkdir(exist_ok=True)
