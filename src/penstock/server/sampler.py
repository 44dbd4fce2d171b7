"""The sampler: reads the status of the home once a second, for all clients of the server.

A thread reads the status, because it queries the catalog and the upstream; everything else happens in the event loop of
the server, so no locks are needed. If reading takes long, as with hundreds of tables or an upstream that does not
answer, the sampler reads less often, so that it uses at most a part of one core.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.engine.status_document import HomeStatus
from penstock.errors import PenstockError, TransientError
from penstock.server.error_response import penstock_error
from penstock.server.history import History

__all__ = ["Sample", "Sampler"]

_SECONDS = 1.0
_SHARE = 3
"""After reading for t seconds, wait at least this many times t."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The status at one time (seconds since the epoch), its JSON document, and its point of the history."""

    at: float
    status: HomeStatus
    document: dict[str, Any]
    point: dict[str, dict[str, float | None]]


class Sampler:
    """Reads the status once a second between `start` and `stop`."""

    def __init__(
        self, read: Callable[[], HomeStatus], seconds: float = _SECONDS, close: Callable[[], None] = lambda: None
    ) -> None:
        """Create a sampler of what `read` returns; its thread calls `close` at the end."""
        self._close = close
        self._read = read
        self._seconds = seconds
        self._stopping = threading.Event()
        self._changed = asyncio.Event()
        self.history = History()
        self.latest: Sample | None = None
        """The newest sample, or None before the first. Reading it is safe in any thread."""
        self.error: PenstockError | None = None
        """Why the status could not be read the last time, or None."""

    @property
    def is_stopping(self) -> bool:
        """Whether the server is being stopped: streams of samples end then."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start reading, in a thread; call this in the event loop of the server."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(loop,), name="penstock-status", daemon=True).start()

    def stop(self) -> None:
        """Stop reading, and wake all that wait for a sample; call this in the event loop of the server."""
        self._stopping.set()
        self._changed.set()

    async def current(self) -> Sample:
        """Return the newest sample; wait for the first one. Raise the error if the status could not be read."""
        while self.latest is None and self.error is None:
            if not await self.wait():
                message = "Penstock is stopping"
                raise TransientError(message, "Start it again: penstock run")
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.latest is not None
        return self.latest

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next sample; return False after `seconds`, or if the server is being stopped."""
        if self.is_stopping:
            return False
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return not self.is_stopping

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._sample_until_stopped(loop)
        finally:
            self._close()

    def _sample_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        took = 0.0
        while not self._stopping.wait(max(self._seconds, _SHARE * took) if took else 0.0):
            began = time.monotonic()
            found = self._sampled()
            took = time.monotonic() - began
            try:
                loop.call_soon_threadsafe(self._publish, found)
            except RuntimeError:  # the loop was closed meanwhile
                return

    def _sampled(self) -> tuple[float, HomeStatus, dict[str, Any]] | PenstockError:
        try:
            status = self._read()
            return round(time.time(), 3), status, status.as_json()
        except Exception as error:
            return penstock_error(error)

    def _publish(self, found: tuple[float, HomeStatus, dict[str, Any]] | PenstockError) -> None:
        if isinstance(found, PenstockError):
            self.error = found
        else:
            at, status, document = found
            self.latest, self.error = Sample(at, status, document, self.history.add(at, document)), None
        if not self.is_stopping:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
