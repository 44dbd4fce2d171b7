"""``/api/events``: the status and its history as server-sent events, about once a second."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.server.context import ServerContext
from penstock.server.error_response import error_response
from penstock.server.sampler import Sample, Sampler

__all__ = ["events_routes"]

_CLIENTS = 32
_HEARTBEAT_SECONDS = 15.0


def events_routes(context: ServerContext) -> list[BaseRoute]:
    """Return the route of the events."""
    streams: set[object] = set()

    async def events(request: Request) -> Response:
        """Server-sent events: first `history`, then `status` about once a second."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if len(streams) >= _CLIENTS:
            return error_response(503, f"{_CLIENTS} clients read events already", "Close one of them.")

        async def stream() -> AsyncIterator[bytes]:
            mark = object()
            streams.add(mark)
            try:
                async for text in _events(context.sampler):
                    yield text
            finally:
                streams.discard(mark)

        unbuffered = {"x-accel-buffering": "no"}  # by a proxy such as nginx
        return StreamingResponse(stream(), headers=unbuffered, media_type="text/event-stream")

    return [Route("/api/events", events)]


async def _events(sampler: Sampler) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    sent: Sample | None = None
    while not sampler.is_stopping:
        if sampler.latest is not None and sampler.latest is not sent:
            if sent is None:
                yield _event("history", sampler.history.as_json())
            sent = sampler.latest
            yield _status_event(sent)
        elif not await sampler.wait(_HEARTBEAT_SECONDS):
            yield b": still here\n\n"


@functools.lru_cache(maxsize=1)
def _status_event(sample: Sample) -> bytes:
    """Return the event of a sample; it is encoded once for all clients."""
    return _event("status", {"status": sample.document, "history": {"at": sample.at, "series": sample.point}})


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
