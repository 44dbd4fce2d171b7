"""Who may do what: the access of a request.

::

    Unix socket                           FULL   only the owner of the home can connect
    TCP, with the token                   FULL
    TCP, where no token is required       READ   any user of this machine can connect
    TCP, without the required token       NONE   health checks and the login page only
"""

from __future__ import annotations

import enum

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from penstock.server.token import Token

__all__ = ["ACCESS", "OVER_SOCKET", "Access", "access_of", "granted"]

ACCESS = "penstock.access"
"""The key of the ASGI scope with the access of a request; the security middleware sets it."""
OVER_SOCKET = "penstock.over_socket"
"""The key of the ASGI scope that marks a request over the Unix socket; `serving` sets it."""


class Access(enum.IntEnum):
    """What a request may do; a higher level includes the lower ones."""

    NONE = 0
    """Ask whether the server is alive, and log in."""
    READ = 1
    """Read the status, metrics and tables."""
    FULL = 2
    """Also execute statements that change the home."""


def access_of(request: Request) -> Access:
    """Return the access of a request; NONE if no middleware has checked it."""
    access: Access = request.scope.get(ACCESS, Access.NONE)
    return access


def granted(scope: Scope, token: Token | None) -> Access:
    """Return the access of a connection with these headers."""
    if scope.get(OVER_SOCKET, False):
        return Access.FULL
    if token is None:
        return Access.READ
    return Access.FULL if token.is_sent(Headers(scope=scope)) else Access.NONE
