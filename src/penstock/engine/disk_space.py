"""Free space on the disk of the home: capture and the work on tables pause before it is full, and resume by themselves.

A full disk stops more than Penstock: SQLite cannot even delete rows, and Delta leaves half-written files. So below the
floor only the catalog is written, and what frees space continues: retention and vacuum. Postgres retains the WAL
meanwhile, which `alarms` watches. The work resumes with some more space than the floor, so that it does not pause again
at once.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import TransientError, UsageError
from penstock.units import parse_size, size_text

__all__ = ["DISK_FLOOR", "disk_floor", "pausing_when_full", "require_space", "short_of_space", "wait_for_space"]

DISK_FLOOR = "PENSTOCK_DISK_FLOOR"
"""The environment variable with the floor."""
_DEFAULT = 512 << 20
_MARGIN = 1.2
_POLL_SECONDS = 1.0


def disk_floor() -> int:
    """Return the free space below which work pauses, in bytes."""
    text = os.environ.get(DISK_FLOOR, "")
    try:
        return parse_size(text) if text else _DEFAULT
    except UsageError as error:
        message = f"invalid value {text!r} of {DISK_FLOOR}"
        raise UsageError(message, error.hint) from None


def short_of_space(home: Path, *, paused: bool = False) -> TransientError | None:
    """Return the error if less than the floor is free; once `paused`, if not clearly more is free."""
    floor = disk_floor()
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return None  # writers report what is wrong with it
    if free >= floor * (_MARGIN if paused else 1.0):
        return None
    message = f"paused: less than {size_text(floor)} are free on the disk of {home}"
    return TransientError(message, f"Free some space: Penstock resumes by itself. {DISK_FLOOR} sets the limit.")


def require_space(home: Path) -> None:
    """Raise `TransientError` if less than the floor is free."""
    error = short_of_space(home)
    if error is not None:
        raise error


@contextmanager
def pausing_when_full(
    home: Path, stop: threading.Event, cancel: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """Yield an event that is set with `stop`, or when the disk is nearly full; then also call `cancel` repeatedly."""
    ended, halted = threading.Event(), threading.Event()
    watch = threading.Thread(target=_watch, args=(home, stop, ended, halted, cancel), name="penstock-disk", daemon=True)
    watch.start()
    try:
        yield halted
    finally:
        ended.set()


def _watch(
    home: Path,
    stop: threading.Event,
    ended: threading.Event,
    halted: threading.Event,
    cancel: Callable[[], None] | None,
) -> None:
    is_full = False
    while not (stop.wait(_POLL_SECONDS) or is_full or ended.is_set()):
        is_full = short_of_space(home) is not None
    halted.set()
    while is_full and cancel is not None and not ended.wait(_POLL_SECONDS):
        cancel()


def wait_for_space(
    home: Path, stop: threading.Event, report: Callable[[TransientError], None], release: Callable[[], None]
) -> None:
    """Wait until there is space again, or `stop` is set; report the error, and call `release` repeatedly."""
    error = short_of_space(home)
    if error is not None:
        report(error)
    while error is not None and not stop.wait(_POLL_SECONDS):
        release()
        error = short_of_space(home, paused=True)
