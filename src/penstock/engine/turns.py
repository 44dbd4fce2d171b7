"""Work for many tables, a few at a time.

`Turns` does it in rounds; a table that takes long keeps its thread, but does not delay the others::

    round 1   a ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇   (takes long: the round ends without it)
              b ▇▇  c ▇▇▇  d ▇▇
    round 2                     b ▇▇  c ▇▇  d ▇▇          (a is still running, and is skipped)

`side_by_side` is one such round without exceptions: it returns when all are done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

__all__ = ["Turns", "side_by_side"]

_AT_A_TIME = 2
_LONG_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_MOST_THREADS = 32

_Thing = TypeVar("_Thing")


class Turns(Generic[_Thing]):
    """Gives each thing its turn, in rounds; used by one thread."""

    def __init__(self, name: str, stop: threading.Event, long_seconds: float | None = None) -> None:
        self._pool = ThreadPoolExecutor(_MOST_THREADS, name)
        self._stop = stop
        self._long_seconds = _LONG_SECONDS if long_seconds is None else long_seconds
        self._at_work: dict[_Thing, tuple[Future[None], float]] = {}

    def round(self, work: Callable[[_Thing], None], things: Iterable[_Thing]) -> None:
        """Do the work for each thing that is not at work from an earlier round.

        Returns when each has had its turn, and is done or takes long. An error of one does not end the round; the first
        is raised at its end, also that of an earlier round's.
        """
        waiting = deque(thing for thing in things if thing not in self._at_work)
        failures: list[BaseException] = []
        while (waiting and not self._stop.is_set()) or self._in_place():
            while waiting and len(self._in_place()) < _AT_A_TIME and len(self._at_work) < _MOST_THREADS:
                thing = waiting.popleft()
                self._at_work[thing] = (self._pool.submit(work, thing), time.monotonic())
            wait([future for future, _ in self._at_work.values()], _LOOK_SECONDS, FIRST_COMPLETED)
            failures += self._ended()
        failures += self._ended()
        if failures:
            raise failures[0]

    def shut_down(self) -> None:
        """Wait for what is at work."""
        self._pool.shutdown()

    def _in_place(self) -> list[_Thing]:
        """Return what is at work and does not take long yet."""
        now = time.monotonic()
        return [thing for thing, (_, began) in self._at_work.items() if now < began + self._long_seconds]

    def _ended(self) -> list[BaseException]:
        """Forget what is done; return its errors."""
        done = [thing for thing, (future, _) in self._at_work.items() if future.done()]
        errors = [self._at_work.pop(thing)[0].exception() for thing in done]
        return [error for error in errors if error is not None]


def side_by_side(pool: Executor, work: Callable[[_Thing], None], things: Iterable[_Thing]) -> None:
    """Do the work for every thing, also when it fails for one of them; then raise what failed first."""
    waiting = [pool.submit(work, thing) for thing in things]
    failures = [error for error in (future.exception() for future in waiting) if error is not None]
    if failures:
        raise failures[0]
