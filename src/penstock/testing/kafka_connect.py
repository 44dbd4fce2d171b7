"""A local Kafka Connect process with any number of connectors: the base of Debezium's connectors in tests.

::

    lock files ─▶ jars ─▶ java ConnectStandalone worker.properties <connector>.json …
                             ▲        └─ folder/offsets: progress of source connectors, stored by a clean stop
                             └── watch (sh) ── kill -9 when this process ends

The process is ready when a task of every connector runs. All connectors are stopped and killed together.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from penstock.testing.java_server import JavaServer, free_ports, of_jars

__all__ = ["KafkaConnect"]

_MEGABYTES = 512
_UNASSIGNED = "UNASSIGNED"
_HOUR_MS = 3_600_000
_REQUEST_BYTES = 32 << 20


class KafkaConnect(JavaServer):
    """A Kafka Connect process; subclasses add connectors before it starts, each with its converters."""

    LOCKS: ClassVar[tuple[str, ...]]
    """The lock files with its jars."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__(folder)
        self._bootstrap = bootstrap
        self._connectors: dict[str, dict[str, str]] = {}
        """The settings of each connector, by its name."""
        self._port, _ = free_ports()

    def _command(self) -> list[str]:
        program = ("org.apache.kafka.connect.cli.ConnectStandalone", *map(str, self._write_settings()))
        return [*of_jars(self.LOCKS, _MEGABYTES), *program]

    def _answers(self) -> bool:
        self._raise_if_failed()
        return self._states() == {"RUNNING"}

    def _write_settings(self) -> list[Path]:
        """Write the properties of the process, and a file for each connector."""
        worker = self._folder / "worker.properties"
        settings = _worker(self._folder, self._bootstrap, self._port)
        worker.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        files = [worker]
        for name, connector in self._connectors.items():
            files.append(self._folder / f"{name}.json")
            files[-1].write_text(json.dumps({"name": name, "config": connector}), encoding="utf-8")
        return files

    def _raise_if_failed(self) -> None:
        if self._ended() or "FAILED" in self._states():
            raise self._exit_error()

    def _states(self) -> set[str]:
        """Return the states of all tasks; a connector without tasks counts as unassigned."""
        return {state for name in self._connectors for state in self._states_of(name)}

    def _states_of(self, name: str) -> set[str]:
        where = f"http://127.0.0.1:{self._port}/connectors/{name}/status"
        with suppress(OSError), urllib.request.urlopen(where, timeout=5) as answer:
            status: dict[str, Any] = json.load(answer)
            return {task["state"] for task in status["tasks"]} or {_UNASSIGNED}
        return {_UNASSIGNED}


def _worker(folder: Path, bootstrap: str, port: int) -> dict[str, object]:
    json_converter = "org.apache.kafka.connect.json.JsonConverter"  # required, but used by no connector
    return {
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": _HOUR_MS,
        "producer.batch.size": _REQUEST_BYTES // 32,
        "producer.max.request.size": _REQUEST_BYTES,
        "key.converter": json_converter,
        "value.converter": json_converter,
    }
