"""Work for many tables, a few at a time.

`WorkRounds` does it in rounds; a table that takes long keeps its thread, but does not delay the others::

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

__all__ = ["WorkRounds", "side_by_side"]

_AT_A_TIME = 2
_LONG_SECONDS = 10.0
_POLL_SECONDS = 0.5
_MOST_THREADS = 32

_Item = TypeVar("_Item")


class WorkRounds(Generic[_Item]):
    """Runs work for many items in rounds, a few at a time; used by one thread."""

    def __init__(self, name: str, stop: threading.Event, long_seconds: float | None = None) -> None:
        self._pool = ThreadPoolExecutor(_MOST_THREADS, name)
        self._stop = stop
        self._long_seconds = _LONG_SECONDS if long_seconds is None else long_seconds
        self._running: dict[_Item, tuple[Future[None], float]] = {}

    def round(self, work: Callable[[_Item], None], items: Iterable[_Item]) -> None:
        """Do the work for each item that is not still running from an earlier round.

        Return when each item has had its turn, and is done or takes long. An error of one item does not end the round;
        the first error is raised at its end, including errors of items from earlier rounds.
        """
        waiting = deque(item for item in items if item not in self._running)
        failures: list[BaseException] = []
        while (waiting and not self._stop.is_set()) or self._occupying():
            while waiting and len(self._occupying()) < _AT_A_TIME and len(self._running) < _MOST_THREADS:
                item = waiting.popleft()
                self._running[item] = (self._pool.submit(work, item), time.monotonic())
            wait([future for future, _ in self._running.values()], _POLL_SECONDS, FIRST_COMPLETED)
            failures += self._ended()
        failures += self._ended()
        if failures:
            raise failures[0]

    def shut_down(self) -> None:
        """Wait for the running work."""
        self._pool.shutdown()

    def _occupying(self) -> list[_Item]:
        """Return the items that are running and do not take long yet."""
        now = time.monotonic()
        return [item for item, (_, began) in self._running.items() if now < began + self._long_seconds]

    def _ended(self) -> list[BaseException]:
        """Remove the items that are done; return their errors."""
        done = [item for item, (future, _) in self._running.items() if future.done()]
        errors = [self._running.pop(item)[0].exception() for item in done]
        return [error for error in errors if error is not None]


def side_by_side(pool: Executor, work: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Do the work for every item, even if it fails for one of them; then raise the first error."""
    waiting = [pool.submit(work, item) for item in items]
    failures = [error for error in (future.exception() for future in waiting) if error is not None]
    if failures:
        raise failures[0]
