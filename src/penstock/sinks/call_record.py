"""The record of a sink whose target has no place for its position: how far it is, and the call in progress.

It is a file in the home, of sinks into a function, and of sinks into Kafka with ``delivery = 'at least once'``.

::

    {"version": 1, "position": {…}, "called": "16/B374D848", "end": "16/B3750000"}

    before a call    `end` is written: the last position of the range
    after it         `position` and `called` advance, and `end` is null again

The file is replaced atomically, and is on disk before a call begins. So a call that did not return is repeated with
the same range, by whichever process is next. `position` also advances where the table has no changes; `called` is the
end of the last call, so that ranges of consecutive calls are contiguous.

While a record is open, its lock file is locked: a call that is still running, in a thread that a stopped home left
behind, keeps the next one from starting.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import DefiniteError, TransientError
from penstock.layout import state_path
from penstock.positions import Lsn
from penstock.private_file import create_folder
from penstock.sinks.position import SinkPosition

__all__ = ["CallRecord", "RecordedCall", "calls_path", "remove_calls"]

_VERSION = 1


def calls_path(home: Path, sink: str) -> Path:
    """Return the folder of the records of a sink: no source has such a name."""
    return state_path(home, f"sink-{sink}")


def remove_calls(home: Path, sink: str) -> None:
    """Remove the records of a dropped sink."""
    shutil.rmtree(calls_path(home, sink), ignore_errors=True)


@dataclass(frozen=True)
class RecordedCall:
    """What a record contains."""

    position: SinkPosition
    called: Lsn | None
    """The end of the last call that returned; None before the first."""
    end: Lsn | None = None
    """The end of a call of changes that has begun."""


class CallRecord:
    """The record of one sink and source, from `open` to `close`; used by one thread."""

    def __init__(self, home: Path, sink: str, source: str, *, what: str = "call of the function") -> None:
        """Create the record; `what` names its calls in errors."""
        self._sink, self._path, self._what = sink, calls_path(home, sink) / f"{source}.json", what
        self._lock: int | None = None
        self.last: RecordedCall | None = None

    @property
    def path(self) -> Path:
        """The file of the record."""
        return self._path

    @property
    def folder(self) -> Path:
        """The folder of the record."""
        return self._path.parent

    def open(self) -> None:
        """Lock and read the record."""
        if self._lock is None:
            create_folder(self.folder)
            self._lock = self._take()
        self.last = self._read()

    def write(self, call: RecordedCall) -> None:
        """Replace the record; it is durable when this returns."""
        fields = {
            "version": _VERSION,
            "position": json.loads(call.position.to_bytes()),
            "called": None if call.called is None else str(call.called),
            "end": None if call.end is None else str(call.end),
        }
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(fields, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        _sync(self.folder)
        self.last = call

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _take(self) -> int:
        handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            message = f"an earlier {self._what} of sink {self._sink} has not returned yet"
            raise TransientError(message, "Wait until it returns, or end the process in which it runs.") from None
        return handle

    def _read(self) -> RecordedCall | None:
        try:
            fields = json.loads(self._path.read_bytes())
            if fields["version"] != _VERSION:
                message = f"the record {self._path} has version {fields['version']}, and this Penstock reads {_VERSION}"
                raise DefiniteError(message, "Use the Penstock that wrote it, or a newer one.")
            position = SinkPosition.from_bytes(json.dumps(fields["position"]).encode())
            called, end = (None if fields[name] is None else Lsn.parse(fields[name]) for name in ("called", "end"))
            return RecordedCall(position, called, end)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{self._path} is not the record of a sink"
            raise DefiniteError(message, "Restore the file, or drop the sink and create it again.") from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
