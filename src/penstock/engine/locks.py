"""Locks of a home: advisory locks on files in `run/`, which the kernel releases when their process ends.

::

    lock               the process that runs the home
    server.lock        the process that serves the home over HTTP: ``penstock run``, also while Spark is starting
    making             the process that creates, drops or recovers sources, so that no other process takes a create in
                       progress for one whose process died
    source-NAME.lock   the process that captures and applies a source; its capture process inherits the lock, and may
                       outlive it

The holder writes its pid into the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DefiniteError, TransientError
from penstock.layout import run_path
from penstock.private_file import create_folder

__all__ = [
    "SourceLock",
    "hold_home",
    "hold_server",
    "holder",
    "lifecycle_lock",
    "source_holder",
    "take_source",
    "try_lifecycle_lock",
]

_LIFECYCLE_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.05
_PROBE_SECONDS = 0.3
"""Testing whether a lock is held takes it for an instant, so wait this long before it counts as held."""


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Hold the lock of the process that runs the home; raise `DefiniteError` with the pid of another holder."""
    with _hold(home, "lock"):
        yield


@contextmanager
def hold_server(home: Path) -> Iterator[None]:
    """Hold the lock of the process that serves the home; raise `DefiniteError` with the pid of another holder."""
    with _hold(home, "server.lock"):
        yield


@contextmanager
def _hold(home: Path, name: str) -> Iterator[None]:
    handle = _take(home, name, _PROBE_SECONDS)
    if handle is None:
        message = f"another Penstock (pid {_holder(home, name) or 'unknown'}) is using the home {home}"
        raise DefiniteError(message, "Stop it first, or use another home (--home).")
    try:
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def holder(home: Path) -> int | None:
    """Return the pid of the process that runs the home, or None."""
    return _holder(home, "lock")


@contextmanager
def lifecycle_lock(home: Path, seconds: float = _LIFECYCLE_LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock for creating, dropping and recovering sources; wait for another holder, up to `seconds`."""
    handle = _take(home, "making", seconds)
    if handle is None:
        message = f"another Penstock (pid {_holder(home, 'making') or 'unknown'}) creates or drops a source in {home}"
        raise TransientError(message, "Try again when it has finished.")
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def try_lifecycle_lock(home: Path) -> Iterator[bool]:
    """Hold the same lock if it is free; yield whether it was."""
    handle = _take(home, "making", 0.0)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


class SourceLock:
    """The lock for capturing and applying a source, until it is released."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        """The file descriptor; a process that inherits it holds the lock, too, until it ends."""

    def release(self) -> None:
        """Release the lock; further calls have no effect."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1


def take_source(home: Path, source: str, seconds: float = 0.0) -> SourceLock | None:
    """Lock a source; return None if another process still holds it after `seconds`."""
    handle = _take(home, _name(source), seconds)
    return None if handle is None else SourceLock(handle)


def source_holder(home: Path, source: str) -> int | None:
    """Return the pid of the process that holds the lock of a source, or None."""
    return _holder(home, _name(source))


def _name(source: str) -> str:
    return f"source-{source}.lock"


def _take(home: Path, name: str, seconds: float) -> int | None:
    handle, deadline = _open(home, name), time.monotonic() + seconds
    while not _try(handle):
        if time.monotonic() >= deadline:
            os.close(handle)
            return None
        time.sleep(_POLL_SECONDS)
    _write_pid(handle, home)
    return handle


def _holder(home: Path, name: str) -> int | None:
    if not (run_path(home) / name).exists():
        return None
    handle = _open(home, name)
    try:
        return None if _try(handle) else _pid(handle)
    finally:
        os.close(handle)


def _open(home: Path, name: str) -> int:
    folder = run_path(home)
    try:
        create_folder(folder)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable_home(home, error) from error


def _write_pid(handle: int, home: Path) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise _unusable_home(home, error) from error


def _unusable_home(home: Path, error: OSError) -> DefiniteError:
    return DefiniteError(
        f"the home {home} cannot be used: {error.strerror}", "Fix the error, or use another home (--home)."
    )


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(handle: int) -> int:
    text = os.pread(handle, 32, 0).decode().strip()
    return int(text) if text.isdigit() else 0
