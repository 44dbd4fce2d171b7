"""How long apply rests between rounds: live views do not wait for it, and queries need the cores.

A rest is as long as the round before took, times a factor, within limits. The factor is `PENSTOCK_APPLY_REST`, for
those who read base tables themselves and want them newer, or who want the cores for something else.
"""

from __future__ import annotations

import os

from penstock.errors import UsageError

__all__ = ["apply_rest", "pause_after"]

_VARIABLE = "PENSTOCK_APPLY_REST"
_REST = 3.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


def apply_rest() -> float:
    """Return how many times as long as a round of merges apply rests after it."""
    text = os.environ.get(_VARIABLE, "")
    try:
        rest = float(text) if text else _REST
    except ValueError:
        rest = -1.0
    if not 0 <= rest < float("inf"):
        message = f"{_VARIABLE} is {text!r}, and has to be a number that is not negative"
        raise UsageError(message, f"Set it to how many times as long as a round apply shall rest; else {_REST:g}.")
    return rest


def pause_after(seconds: float, rest: float) -> float:
    """Return how long to rest after a round that took so many seconds."""
    return min(max(rest * seconds, _SHORTEST_PAUSE), _LONGEST_PAUSE)
