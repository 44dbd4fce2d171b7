"""One process at a time runs, creates or drops in a home; which one, is written into the lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DefiniteError
from penstock.layout import run_path

__all__ = ["hold_home", "holder"]


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Be the one process that changes this home; a second one is refused, and told who has it."""
    handle = _open(home)
    try:
        if not _try(handle):
            message = f"another Penstock (pid {_pid(handle)}) is using the home {home}"
            raise DefiniteError(
                message,
                "Stop it first, or use another home (--home).",
            )
        _sign(handle, home)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def holder(home: Path) -> int | None:
    """Return the pid of the process that holds this home, if one does."""
    if not (run_path(home) / "lock").exists():
        return None
    handle = _open(home)
    try:
        return None if _try(handle) else _pid(handle)
    finally:
        os.close(handle)


def _open(home: Path) -> int:
    folder = run_path(home)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
