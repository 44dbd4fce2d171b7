"""The number of errors of a source's capture, by class: counted by the capture process in a file, read by the status.

Errors are rare, because capture retries with growing pauses. Only the class is kept: the catalog has the last message.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from penstock.layout import state_path
from penstock.private_file import replace_file

__all__ = ["capture_errors", "count_capture_error"]

_FILE = "errors.json"


def capture_errors(home: Path, source: str) -> dict[str, int]:
    """Return the number of errors of each class, since the source was created."""
    with suppress(OSError, ValueError, AttributeError):
        found = json.loads((state_path(home, source) / _FILE).read_text(encoding="utf-8"))
        return {str(name): int(count) for name, count in found.items()}
    return {}


def count_capture_error(home: Path, source: str, error: BaseException) -> None:
    """Count an error; only the capture process of the source calls this."""
    found, name = capture_errors(home, source), type(error).__name__
    path = state_path(home, source) / _FILE
    with suppress(OSError):  # a full disk is reported elsewhere
        replace_file(path, json.dumps({**found, name: found.get(name, 0) + 1}))
