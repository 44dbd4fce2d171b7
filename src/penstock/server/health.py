"""``/healthz`` and ``/readyz``: checks for load balancers and container platforms; they need no token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.engine.status_document import HomeStatus
from penstock.errors import PenstockError
from penstock.server.access import Access, access_of
from penstock.server.context import ServerContext

__all__ = ["health_routes"]


def health_routes(context: ServerContext) -> list[BaseRoute]:
    """Return the routes of the health checks."""

    async def healthz(request: Request) -> Response:
        """Whether the process is alive."""
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        """Whether Spark is up and sources run; if not, why. Without access, the reasons are omitted."""
        reasons = [*_spark(context), *_sources(context)]
        document = {"status": "not ready" if reasons else "ready"}
        if access_of(request) >= Access.READ:
            return JSONResponse({**document, "reasons": reasons}, 503 if reasons else 200)
        return JSONResponse(document, 503 if reasons else 200)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def _spark(context: ServerContext) -> list[str]:
    try:
        context.spark()
    except PenstockError as error:
        return [error.message]
    return []


def _sources(context: ServerContext) -> list[str]:
    """Return why no source runs; a failed source among others that run is reported by the status."""
    if context.sampler.error is not None:
        return [context.sampler.error.message]
    if context.sampler.latest is None:
        return ["the status has not been read yet"]
    status: HomeStatus = context.sampler.latest.status
    if status.running is None:
        return ["no source runs yet"]
    if status.sources and all(source.state != "ready" for source in status.sources):
        return [f'source "{source.name}" is {source.state}' for source in status.sources]
    return []
