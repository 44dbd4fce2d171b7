"""A local schema registry (Apicurio) with Confluent's REST interface, for tests.

::

    registry.lock ─▶ zip in the cache (downloaded once and verified, like Spark's jars)
                       └─▶ cache/registry/<revision>-<sha256>/   unpacked once
                              └─▶ start_registry(folder) ─▶ java -jar … ─▶ ready on 127.0.0.1
                                                              watch (sh) ── kill -9 when this process ends

It listens on the loopback interface only. It keeps its port as long as its object exists, and its schemas in `folder`:
after `stop` and `start` it is the same registry. Its output is in ``folder/registry.log``.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.cache import cache_dir
from penstock.spark.jars import fetch_jars, read_lock
from penstock.testing.java_server import JavaServer, free_ports, java

__all__ = ["SchemaRegistry", "register_schema", "start_registry"]

_MEGABYTES = 512


def start_registry(folder: Path) -> SchemaRegistry:
    """Start a registry with its data in `folder`, and return when it is ready."""
    registry = SchemaRegistry(folder)
    registry.start()
    return registry


class SchemaRegistry(JavaServer):
    """A registry process."""

    NAME, LOG = "the schema registry", "registry.log"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port, _ = free_ports()

    @property
    def url(self) -> str:
        """The URL of Confluent's REST interface."""
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
    """Return the jar of the registry; download and unpack it on first use."""
    [archive] = read_lock("penstock.testing", "registry.lock")
    home = cache_dir() / "registry" / f"{archive.revision}-{archive.sha256[:16]}"
    if not home.is_dir():
        [path] = fetch_jars([archive])
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
