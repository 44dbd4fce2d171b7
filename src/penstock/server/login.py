"""``/login`` and ``/logout``: a browser sends the token once, and keeps a cookie that stands for it.

The cookie is not readable by scripts (HttpOnly) and is not sent with requests from other sites (SameSite=Strict). The
form works without JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.server.access import Access, access_of
from penstock.server.context import ServerContext

__all__ = ["login_routes"]

_DAYS = 30
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 24rem; margin: 15vh auto 0; padding: 0 1rem; }
input, button { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; margin: .25rem 0 .75rem; }
[role=alert] { color: light-dark(#b3261e, #ffb4ab); }
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock – log in</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Penstock</h1>
{alert}<form method="post" action="/login">
<label for="token">Token of this server (the content of the file after <code>--token-file</code>)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button>
</form>
</main>
</body>
</html>
"""
_WRONG = '<p role="alert">This is not the token.</p>\n'
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def login_routes(context: ServerContext) -> list[BaseRoute]:
    """Return the routes of the login."""
    token = context.token

    async def form(request: Request) -> Response:
        """A form that asks for the token."""
        if access_of(request) > Access.NONE:
            return RedirectResponse("/", 303)
        return _page()

    async def log_in(request: Request) -> Response:
        """Set the cookie, if the form has the token."""
        if token is None:
            return RedirectResponse("/", 303)
        fields = parse_qs((await request.body()).decode("ascii", "replace"))
        if not token.matches(fields.get("token", [""])[0].strip()):
            return _page(_WRONG, 401)
        response = RedirectResponse("/", 303)
        is_secure = request.headers.get("origin", "").startswith("https://")
        response.set_cookie(
            *(token.cookie_name, token.cookie, _DAYS * 86400),
            httponly=True,
            samesite="strict",
            secure=is_secure,
        )
        return response

    async def log_out(request: Request) -> Response:
        """Remove the cookie."""
        response = RedirectResponse("/login", 303)
        if token is not None:
            response.delete_cookie(token.cookie_name, httponly=True, samesite="strict")
        return response

    return [
        Route("/login", form, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _page(alert: str = "", status: int = 200) -> Response:
    text = _PAGE.format(style=_STYLE, alert=alert)
    return HTMLResponse(text, status, {"content-security-policy": _POLICY})
