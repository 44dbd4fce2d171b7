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
import tempfile
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.spark.cache import cache_dir
from penstock.spark.jars import fetched_jars, read_lock
from penstock.testing.java_server import JavaServer, java
from penstock.testing.ports import free_ports

__all__ = ["SchemaRegistry", "register_schema", "start_registry"]

_MEGABYTES = 512


def start_registry(folder: Path) -> SchemaRegistry:
    """Start a registry that keeps everything in `folder`, and return when it answers."""
    registry = SchemaRegistry(folder)
    registry.start()
    return registry


class SchemaRegistry(JavaServer):
    """A registry with its process."""

    NAME, LOG = "the schema registry", "registry.log"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port, _ = free_ports()

    @property
    def url(self) -> str:
        """Where clients of Confluent's interface find it."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Register a schema under a subject; return its id."""
        return register_schema(self.url, subject, text, kind, references)

    def _command(self) -> list[str]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": f"jdbc:h2:file:{self._folder / 'schemas'}",
        }
        named = [f"-D{name}={value}" for name, value in settings.items()]
        return [*java(_MEGABYTES), *named, "-jar", str(_program())]

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5):  # noqa: S310
            return True
        return False


def register_schema(
    url: str, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
) -> int:
    """Register a schema under a subject of the registry at `url`; return its id."""
    body = {"schema": text, "schemaType": kind, "references": references or []}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{url}/subjects/{subject}/versions",
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return int(json.load(answer)["id"])


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
