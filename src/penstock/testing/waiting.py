"""Waiting in tests: for a condition, never for a fixed time.

A test that sleeps and then checks is slow on a fast machine and fails on a slow one. ``until`` polls a condition and
returns as soon as it holds. The timeout is one constant, ``PATIENCE``: generous, because only a failing test waits for
it. Set ``PENSTOCK_TEST_PATIENCE`` (seconds) on a very slow machine.

``stays`` is for the opposite: something must *not* happen. Use it only if no condition proves the same (a counter of
polls, a later position, a log line), because it always takes its whole time, and only shows that nothing happened
within it.
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
        condition: The condition to wait for. An exception ends the wait: use assertions in it for events that must not
            happen meanwhile, such as the end of a process.
        what: A description of the condition, for the error message.
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
            message = f"timeout after {limit:g} s waiting for {what}"
            raise AssertionError(message)
        _pause(time.monotonic() - began)


def stays(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Assert that `condition` holds now and for `seconds`.

    On a slow machine this proves less, but it does not fail: the condition is checked at least at both ends.

    Args:
        condition: The condition that must remain true.
        what: A description of the condition, for the error message.
        seconds: The duration.

    Raises:
        AssertionError: The condition was false once.
    """
    ends = time.monotonic() + seconds
    while True:
        over = time.monotonic() >= ends
        if not condition():
            message = f"condition did not hold throughout: {what}"
            raise AssertionError(message)
        if over:
            return
        _pause(0.0)


def _pause(took: float) -> None:
    """Sleep longer after an expensive check, to leave the cores to the code under test."""
    time.sleep(min(max(_PAUSE, _SHARE * took), _LONGEST_PAUSE))
