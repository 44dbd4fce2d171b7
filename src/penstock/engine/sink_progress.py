"""What a running sink reports about itself, in a file, for the status; its position is stored with its output."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.layout import run_path
from penstock.positions import Lsn
from penstock.private_file import replace_file

__all__ = ["SinkProgress", "remove_progress", "sink_progress", "write_progress"]


@dataclass(frozen=True)
class SinkProgress:
    """The progress of a sink in one source, or in one shard."""

    position: Lsn
    messages: int
    """Since the sink was started."""
    latency_ms: float | None
    """The time from the commit of the last transaction until it was written."""


def sink_progress(home: Path, sink: str, source: str) -> SinkProgress | None:
    """Return what a sink last reported; None if it never ran here."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(_path(home, sink, source).read_text(encoding="utf-8"))
        return SinkProgress(Lsn.parse(found["position"]), int(found["messages"]), found["latency_ms"])
    return None


def write_progress(home: Path, sink: str, source: str, progress: SinkProgress) -> None:
    """Replace the report of a sink."""
    path = _path(home, sink, source)
    fields = {"position": str(progress.position), "messages": progress.messages, "latency_ms": progress.latency_ms}
    with suppress(OSError):  # the status then shows an older one
        replace_file(path, json.dumps(fields))


def remove_progress(home: Path, sink: str, source: str) -> None:
    """Remove the report of a dropped sink."""
    _path(home, sink, source).unlink(missing_ok=True)


def _path(home: Path, sink: str, source: str) -> Path:
    return run_path(home) / f"sink-{sink}-{source}.json"
