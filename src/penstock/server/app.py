"""The ASGI application: the routes of all parts, behind the security middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from penstock.errors import PenstockError
from penstock.server.context import ServerContext
from penstock.server.error_response import reply_http_exception, reply_penstock_error
from penstock.server.events import events_routes
from penstock.server.health import health_routes
from penstock.server.login import login_routes
from penstock.server.security import Security
from penstock.server.sql import sql_routes
from penstock.server.status import status_routes

__all__ = ["ROUTES", "make_app"]

ROUTES: tuple[Callable[[ServerContext], list[BaseRoute]], ...] = (
    health_routes,
    status_routes,
    events_routes,
    sql_routes,
    login_routes,
)
"""The parts of the server: each returns its routes."""


def make_app(context: ServerContext) -> Starlette:
    """Return the application; its lifespan runs the sampler of the status."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.sampler.start()
        try:
            yield
        finally:
            context.sampler.stop()

    return Starlette(
        routes=[route for part in ROUTES for route in part(context)],
        middleware=[Middleware(Security, context=context)],
        exception_handlers={PenstockError: reply_penstock_error, HTTPException: reply_http_exception},
        lifespan=lifespan,
    )
