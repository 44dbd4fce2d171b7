"""The security middleware: every request passes it, over TCP and over the Unix socket.

::

    Host header            ─▶ 421  a page of another site whose name resolves to this address (DNS rebinding). Checked
                                   where no token is required; where one is, such a page does not have the cookie
    Origin, Sec-Fetch-Site ─▶ 403  a page of another site (CSRF)
    no access              ─▶ 401  for programs; browsers are sent to the login page
    content type           ─▶ 415  a state-changing request that is not JSON: forms of other sites cannot send JSON
    size, time of the body ─▶ 413, 408

There are no CORS headers: no other site can read a response. Responses have headers that forbid scripts from elsewhere,
inline scripts, frames, and guessing of content types. An unexpected exception becomes a response without its text.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.access import ACCESS, OVER_SOCKET, Access, granted
from penstock.server.context import ServerContext
from penstock.server.error_response import error_response, reply_penstock_error
from penstock.unexpected_errors import origin

__all__ = ["BODY_BYTES", "BODY_SECONDS", "HEADERS", "PUBLIC_PATHS", "Security"]

_log = logging.getLogger("penstock.server")

BODY_BYTES = 1 << 20
"""The longest body of a request."""
BODY_SECONDS = 30.0
"""The time in which the body of a request must arrive."""
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/login"})
"""The paths that need no token."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response; a route may set other values."""
_FORM = "application/x-www-form-urlencoded"
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FORM_PATHS = frozenset({"/login", "/logout"})
_PORTS = {"http": 80, "https": 443}


class _RefusedError(Exception):
    """A body that is too long, or too slow."""

    def __init__(self, status: int, message: str, hint: str) -> None:
        super().__init__(status, message, hint)
        self.response = error_response(status, message, hint, {"connection": "close"})


class Security:
    """Checks requests, and adds headers to responses."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[ACCESS] = granted(scope, self._context.token)
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            handler: ASGIApp = self._refusal(scope) or self._app
            await handler(scope, _limited(receive), send_safely)
        except _RefusedError as refused:
            if not started:
                await refused.response(scope, receive, send_safely)
        except Exception as error:
            if started:  # the connection is closed, because the response is not complete
                _log.error("a response of the HTTP server was cut short: %s", origin(error))
            else:
                response = await reply_penstock_error(Request(scope), error)
                await response(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that is refused, or None."""
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if self._context.token is None and not scope.get(OVER_SOCKET) and not self._is_ours(headers.get("host", "")):
            return error_response(
                421,
                "the Host header does not name this server",
                "Use its address, such as http://127.0.0.1:7878, or start it with --token-file.",
            )
        if _is_from_another_site(headers, method, path):
            return error_response(
                403,
                "requests from pages of other sites are not accepted",
                "Behind a proxy, pass the Host header of the client on.",
            )
        if scope[ACCESS] == Access.NONE and path not in PUBLIC_PATHS:
            return _ask_for_token(headers, method)
        return _bad_body(headers, method, path)

    def _is_ours(self, host: str) -> bool:
        found = _split(f"//{host}")
        return found is not None and found.hostname in self._context.hosts


def _ask_for_token(headers: Headers, method: str) -> Response:
    if method == "GET" and "text/html" in headers.get("accept", ""):
        return RedirectResponse("/login", 303)
    return error_response(
        401,
        "a token is required",
        "Send the content of the token file: Authorization: Bearer TOKEN",
        {"www-authenticate": 'Bearer realm="penstock"'},
    )


def _is_from_another_site(headers: Headers, method: str, path: str) -> bool:
    """Return whether a page of another origin caused a request, other than by a link to a page of this server."""
    sent_origin = headers.get("origin")
    if sent_origin is not None and not _same_origin(sent_origin, headers.get("host", "")):
        return True
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
    return path.startswith("/api/") or not is_link


def _same_origin(sent: str, host: str) -> bool:
    theirs, ours = _split(sent), _split(f"//{host}")
    if theirs is None or ours is None or theirs.scheme not in _PORTS or theirs.hostname is None:
        return False
    default = _PORTS[theirs.scheme]
    return (theirs.hostname, theirs.port or default) == (ours.hostname, ours.port or default)


def _split(url: str) -> SplitResult | None:
    try:
        found = urlsplit(url)
        _ = found.port
    except ValueError:
        return None
    return found


def _bad_body(headers: Headers, method: str, path: str) -> Response | None:
    if method in _CHANGING and method != "DELETE":
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        expected = _FORM if path in _FORM_PATHS else "application/json"
        if media_type != expected:
            return error_response(415, f"the content type must be {expected}", f"Send: Content-Type: {expected}")
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > BODY_BYTES:
        return _too_long().response
    return None


def _too_long() -> _RefusedError:
    return _RefusedError(413, f"the request is longer than {BODY_BYTES >> 20} MB", "Split it into smaller ones.")


def _limited(receive: Receive) -> Receive:
    """Return a `receive` that limits the size of the body, and the time until it is complete."""
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    taken, is_complete = 0, False

    async def limited() -> Message:
        nonlocal taken, is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            hint = "Send it at once."
            raise _RefusedError(408, f"the request did not arrive in {BODY_SECONDS:.0f} s", hint) from None
        taken += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if taken > BODY_BYTES:
            raise _too_long()
        return message

    return limited
