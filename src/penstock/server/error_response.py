"""Errors as JSON: a message, a hint that says what to do, and a code; never a stack trace."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.engine.error_policy import as_penstock_error
from penstock.errors import PenstockError, TransientError, UsageError
from penstock.unexpected_errors import unexpected

__all__ = ["error_document", "error_response", "penstock_error", "reply_http_exception", "reply_penstock_error"]

_log = logging.getLogger("penstock.server")
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    415: "unsupported_media_type",
    421: "misdirected_request",
    429: "too_many_requests",
    503: "unavailable",
}
_MESSAGES = {
    404: ("there is nothing at this path", "The reference of the HTTP API lists all paths."),
    405: ("this path does not accept this method", "The reference of the HTTP API lists methods and paths."),
}


def error_document(error: PenstockError) -> dict[str, str]:
    """Return the value of ``"error"`` in a response: ``message``, ``hint`` and ``code``, the class of the error."""
    return {"message": error.message, "hint": error.hint, "code": type(error).__name__}


def error_response(status: int, message: str, hint: str = "", headers: dict[str, str] | None = None) -> JSONResponse:
    """Return a response for an invalid or refused request."""
    document = {"message": message, "hint": hint, "code": _CODES.get(status, "error")}
    return JSONResponse({"error": document}, status, headers)


def penstock_error(error: Exception) -> PenstockError:
    """Return any exception as an error of Penstock; log the place of an unexpected one, but not its text."""
    known = as_penstock_error(error)
    if known is None:
        known = unexpected("the HTTP server", error)
        _log.error("%s", known.message)
    return known


async def reply_penstock_error(request: Request, error: Exception) -> Response:
    """Respond to an error of a route: 400 for an invalid statement, 503 for a transient error, else 500."""
    known = penstock_error(error)
    status = 400 if isinstance(known, UsageError) else 503 if isinstance(known, TransientError) else 500
    return JSONResponse({"error": error_document(known)}, status)


async def reply_http_exception(request: Request, error: Exception) -> Response:
    """Respond to an exception of Starlette, such as an unknown path."""
    assert isinstance(error, HTTPException)
    message, hint = _MESSAGES.get(error.status_code, (error.detail, ""))
    return error_response(error.status_code, message, hint, dict(error.headers or {}))
