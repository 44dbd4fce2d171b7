"""Who may do what in a home at the same time: locks on files in `run/`, which end with the processes that hold them.

::

    lock               the one process that runs the home
    making             whoever makes, drops or recovers sources: nobody takes a create in progress for one that died
    source-NAME.lock   whoever captures and follows a source; its capture process inherits it, and may live longer

Who holds a lock is written into it.
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

__all__ = ["SourceLock", "hold_home", "holder", "making", "making_if_free", "source_holder", "take_source"]

_MAKING_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_GLANCE_SECONDS = 0.3
"""Who looks whether a lock is held has it for a blink."""


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Be the one process that runs this home; a second one is refused, and told who has it."""
    handle = _take(home, "lock", _GLANCE_SECONDS)
    if handle is None:
        message = f"another Penstock (pid {holder(home) or 'unknown'}) is using the home {home}"
        raise DefiniteError(message, "Stop it first, or use another home (--home).")
    try:
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def holder(home: Path) -> int | None:
    """Return the pid of the process that holds this home, if one does."""
    return _holder(home, "lock")


@contextmanager
def making(home: Path, seconds: float = _MAKING_SECONDS) -> Iterator[None]:
    """Be the one who makes, drops or recovers sources here; wait for somebody else to be done, but not for ever."""
    handle = _take(home, "making", seconds)
    if handle is None:
        message = f"another Penstock (pid {_holder(home, 'making') or 'unknown'}) makes or drops a source in {home}"
        raise TransientError(message, "Try again when it is done.")
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def making_if_free(home: Path) -> Iterator[bool]:
    """Be that one, unless somebody is at this moment: say which."""
    handle = _take(home, "making", 0.0)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


class SourceLock:
    """The right to capture and follow a source, until it is let go."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        """A process that inherits it has the lock, too, for as long as it lives."""

    def let_go(self) -> None:
        """Leave the source to others; a second time nothing happens."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1


def take_source(home: Path, source: str, seconds: float = 0.0) -> SourceLock | None:
    """Take a source; None where somebody else still has it after a while."""
    handle = _take(home, _name(source), seconds)
    return None if handle is None else SourceLock(handle)


def source_holder(home: Path, source: str) -> int | None:
    """Return the pid of the process that took a source, if one has it."""
    return _holder(home, _name(source))


def _name(source: str) -> str:
    return f"source-{source}.lock"


def _take(home: Path, name: str, seconds: float) -> int | None:
    handle, deadline = _open(home, name), time.monotonic() + seconds
    while not _try(handle):
        if time.monotonic() >= deadline:
            os.close(handle)
            return None
        time.sleep(_LOOK_SECONDS)
    _sign(handle, home)
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
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(home, error) from error


def _sign(handle: int, home: Path) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise _unusable(home, error) from error


def _unusable(home: Path, error: OSError) -> DefiniteError:
    return DefiniteError(f"the home {home} cannot be used: {error.strerror}", "Mend that, or use another one (--home).")


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(handle: int) -> int:
    text = os.pread(handle, 32, 0).decode().strip()
    return int(text) if text.isdigit() else 0
