"""The status page: one HTML document with the current status, a style sheet and a script.

::

    GET /          page.html, rendered from the latest sample ──▶ readable without JavaScript
    page.js        GET /api/events ─ a sample ─▶ GET / again ─▶ the parts marked data-live are updated in place

The script has no templates of its own: all that the page says about a home is rendered here, so that there is one
rendering of each state, and one place where names and messages are escaped (Jinja's autoescape). Charts are drawn by
the script, because only it has the history. No attribute contains a style or a handler: the content security policy of
the server forbids both.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.errors import PenstockError
from penstock.server.context import ServerContext
from penstock.server.page.pipe import draw_pipe
from penstock.server.page.quantities import count_text, lag_text, rate_text, size_text
from penstock.server.page.view import PageView, page_view, unreadable_view

__all__ = ["page_routes"]

_FOLDER = Path(__file__).parent


def page_routes(context: ServerContext) -> list[BaseRoute]:
    """Return the routes of the status page and its files."""
    templates = _templates()

    async def page(request: Request) -> Response:
        """The status page."""
        view = await _view(context)
        text = templates.get_template("page.html").render(
            view=view, drawings=draw_pipe(view), has_login=context.token is not None
        )
        return HTMLResponse(text)

    return [Route("/", page), Mount("/page", StaticFiles(directory=_FOLDER / "static"))]


async def _view(context: ServerContext) -> PageView:
    now = datetime.now(UTC)
    try:
        sample = await context.sampler.current()
    except PenstockError as error:
        return unreadable_view(error, str(context.home.path), now)
    return page_view(sample.document, sample.point, _waits_for_spark(context), now)


def _waits_for_spark(context: ServerContext) -> str | None:
    try:
        context.spark()
    except PenstockError as error:
        return error.message
    return None


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": count_text,
        "lag": lag_text,
        "rate": rate_text,
        "size": size_text,
        "code": _with_code,
    }
    return environment


def _with_code(text: str) -> Markup:
    """Escape a text and mark the parts between backquotes as code."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(text)
    marked = [Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)]
    return Markup("").join(marked)
