"""HTTP/1.1 connections with limits for slow clients, which uvicorn does not have.

::

    connected, or first byte of a request ─▶ headers complete    HEADER_SECONDS; HEADER_BYTES (uvicorn)
    body                                                         `security.BODY_SECONDS`
    client does not read the response                            STALLED_SECONDS (not over the Unix socket)
    idle between requests                                        KEEP_ALIVE_SECONDS (uvicorn)

More than CONNECTIONS connections are answered with 503 (uvicorn); more than twice as many are closed at once.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["CONNECTIONS", "HEADER_BYTES", "KEEP_ALIVE_SECONDS", "LimitedProtocol", "LocalProtocol"]

CONNECTIONS = 100
HEADER_BYTES = 16 << 10
KEEP_ALIVE_SECONDS = 15


class LimitedProtocol(H11Protocol):
    """A connection that is closed if the client is too slow."""

    HEADER_SECONDS = 10.0
    STALLED_SECONDS = 30.0

    _waits_for_request: asyncio.TimerHandle | None = None
    _waits_for_reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the time until the first request, and the number of connections."""
        super().connection_made(transport)
        if len(self.connections) > 2 * CONNECTIONS:
            transport.abort()
        else:
            self._limit_headers()

    def data_received(self, data: bytes) -> None:
        """Limit the time from the first byte of a request until its headers are complete."""
        super().data_received(data)
        self._limit_headers()

    def pause_writing(self) -> None:
        """Limit the time for which a client may leave a full buffer unread."""
        super().pause_writing()
        self._waits_for_reader = self.loop.call_later(self.STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._waits_for_reader = _cancel(self._waits_for_reader)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limits."""
        self._waits_for_request = _cancel(self._waits_for_request)
        self._waits_for_reader = _cancel(self._waits_for_reader)
        super().connection_lost(exc)

    def _limit_headers(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._waits_for_request = _cancel(self._waits_for_request)
        elif self._waits_for_request is None:
            self._waits_for_request = self.loop.call_later(self.HEADER_SECONDS, self.transport.abort)


class LocalProtocol(LimitedProtocol):
    """A connection over the Unix socket: its client may stop reading for hours, as a pager does."""

    STALLED_SECONDS = 24 * 3600.0


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer, if there is one; return the value of "no timer"."""
    if timer is not None:
        timer.cancel()
    return None
