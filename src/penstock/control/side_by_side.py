"""The same work for several things at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar

__all__ = ["side_by_side"]

_Thing = TypeVar("_Thing")


def side_by_side(pool: Executor, work: Callable[[_Thing], None], things: Iterable[_Thing]) -> None:
    """Do the work for every thing, also when it fails for one of them; then raise what failed first."""
    waiting = [pool.submit(work, thing) for thing in things]
    failures = [error for error in (future.exception() for future in waiting) if error is not None]
    if failures:
        raise failures[0]
