"""``/api/status`` and ``/metrics``: the current status as a JSON document, and in the Prometheus text format."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.engine.metrics import metrics_text
from penstock.server.context import ServerContext

__all__ = ["status_routes"]

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def status_routes(context: ServerContext) -> list[BaseRoute]:
    """Return the routes of the status."""

    async def status(request: Request) -> Response:
        """The document of `penstock status --json`."""
        return JSONResponse((await context.sampler.current()).document)

    async def metrics(request: Request) -> Response:
        """The metrics, in the Prometheus text format."""
        sample = await context.sampler.current()
        return Response(metrics_text(sample.status), media_type=_PROMETHEUS)

    return [Route("/api/status", status), Route("/metrics", metrics)]
