"""How well the things on the status page are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

__all__ = ["LEVELS", "Level", "worst"]

Level = Literal["ok", "busy", "warning", "critical", "idle"]
"""How well a thing is: `busy` works towards `ok`, `idle` does nothing, `warning` and `critical` need attention."""
LEVELS: tuple[Level, ...] = ("critical", "warning", "busy", "ok", "idle")
"""The levels, beginning with the one that needs attention most."""


def worst(levels: Iterable[Level]) -> Level:
    """Return the level that needs attention most; `idle` if there is none."""
    found = set(levels)
    return next((level for level in LEVELS if level in found), "idle")
