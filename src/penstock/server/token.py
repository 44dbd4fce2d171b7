"""The token of the server: a secret that clients outside this machine, or all TCP clients, have to send.

A program sends the token as ``Authorization: Bearer``. A browser sends a cookie, which the login page sets; its value
is derived from the token, so that the browser does not store the token itself. All comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import UsageError

__all__ = ["Token", "read_token"]

_SHORTEST = 16
_HINT = "Create one: (umask 077; openssl rand -hex 32 > token), then pass --token-file token"


class Token:
    """The secret that clients have to send; its text is never printed."""

    def __init__(self, text: str) -> None:
        self._digest = _digest(text)
        self._cookie = hmac.new(text.encode(), b"penstock cookie", hashlib.sha256).hexdigest()
        self.cookie_name = f"penstock-{hashlib.sha256(self._cookie.encode()).hexdigest()[:8]}"
        """The name differs from server to server, because browsers share cookies between the ports of a host."""

    def __repr__(self) -> str:
        return "Token(…)"

    @property
    def cookie(self) -> str:
        """The value of the cookie that stands for the token."""
        return self._cookie

    def matches(self, text: str) -> bool:
        """Return whether a text is the token."""
        return hmac.compare_digest(self._digest, _digest(text))

    def is_sent(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request carries the token, as a bearer token or as the cookie."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.matches(given.strip())
        pairs = (piece.partition("=") for piece in headers.get("cookie", "").split(";"))
        cookies = [value.strip() for name, _, value in pairs if name.strip() == self.cookie_name]
        return any(hmac.compare_digest(self._cookie.encode(), cookie.encode()) for cookie in cookies)


def read_token(path: Path) -> Token:
    """Return the token in a file; raise `UsageError`, without its text, if it cannot be used."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        message = f"the token file {path} cannot be read: {why}"
        raise UsageError(message, _HINT) from None
    if len(text) < _SHORTEST or not text.isprintable() or " " in text:
        message = f"the token in {path} is not one word of at least {_SHORTEST} characters"
        raise UsageError(message, _HINT)
    return Token(text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
