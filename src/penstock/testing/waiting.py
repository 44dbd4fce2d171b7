"""Waiting in tests: for a condition, never for a time.

A test that sleeps and then looks is slow on a fast machine and fails on a slow one. ``until`` polls a condition and
returns as soon as it holds. The timeout is one constant, ``PATIENCE``: generous, because only a test that fails waits
for it. Set ``PENSTOCK_TEST_PATIENCE`` (seconds) on a machine that is slower still.

``stays`` is for the opposite, which no condition can end: something must *not* happen. Use it only where there is
nothing to wait for that proves the same (a counter of looks, a later position, a log line), because it always takes its
whole time, and shows only that nothing happened within it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE", "stays", "until"]

PATIENCE = float(os.environ.get("PENSTOCK_TEST_PATIENCE", "600"))
"""Seconds after which a wait fails. Timeouts of processes and threads that mean "generous" use it too."""

_PAUSE = 0.01
_SHARE = 4
_LONGEST_PAUSE = 0.5
_Value = TypeVar("_Value")


def until(condition: Callable[[], _Value], what: str, seconds: float | None = None) -> _Value:
    """Poll until `condition` returns a true value, and return that value.

    Args:
        condition: What to wait for. An exception ends the wait: assert in it what must not happen meanwhile, such as
            the end of a process.
        what: What is waited for, in the message of the error.
        seconds: The timeout, if the test is about one. Every other test waits for `PATIENCE`.

    Raises:
        AssertionError: The condition did not become true in time.
    """
    limit = PATIENCE if seconds is None else seconds
    deadline = time.monotonic() + limit
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        if began >= deadline:
            message = f"waited {limit:g} s in vain for {what}"
            raise AssertionError(message)
        _pause(time.monotonic() - began)


def stays(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Require that `condition` holds now and for so many seconds.

    On a slow machine this proves less, but it does not fail: the condition is checked at least at both ends.

    Args:
        condition: What must remain true.
        what: What must remain true, in the message of the error.
        seconds: For how long.

    Raises:
        AssertionError: The condition was false once.
    """
    ends = time.monotonic() + seconds
    while True:
        over = time.monotonic() >= ends
        if not condition():
            message = f"did not stay so: {what}"
            raise AssertionError(message)
        if over:
            return
        _pause(0.0)


def _pause(took: float) -> None:
    """Rest longer after a look that is expensive: the waiting test leaves the cores to what it waits for."""
    time.sleep(min(max(_PAUSE, _SHARE * took), _LONGEST_PAUSE))
