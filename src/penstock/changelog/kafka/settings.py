"""Settings of Kafka clients that a user may give: security and network, never what the log's promises rest on.

A secret is given by reference (see `penstock.secret`), so that settings can be stored, shown and sent to executors.
Any value may be a reference; it is read right before a client is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import UsageError
from penstock.secret import check_reference, is_reference, resolve

__all__ = ["Settings", "checked", "resolved"]

Settings = tuple[tuple[str, str], ...]

_ALLOWED = re.compile(
    r"security\.protocol|sasl\.[a-z.]+|ssl\.[a-z.]+|enable\.ssl\.certificate\.verification|https\.ca\.location"
    r"|enable\.sasl\.oauthbearer\.unsecure\.jwt|broker\.address\.(family|ttl)|socket\.[a-z.]+|client\.(id|rack)"
    r"|compression\.(type|level)"
)
_SECRET = re.compile(r".*(password|secret|token|credential).*|sasl\.oauthbearer\.(config|extensions)")
_INLINE_KEY = re.compile(r"ssl\.(key|keystore)\.pem")


def checked(settings: Iterable[tuple[str, str]]) -> Settings:
    """Return settings in one order; refuse what is unknown, what would break the log, and secrets in clear."""
    return tuple(sorted((name, _value(name, value)) for name, value in settings))


def resolved(settings: Settings) -> dict[str, str]:
    """Read the secrets. Do this only right before a client is made."""
    return {name: resolve(value) if is_reference(value) else value for name, value in settings}


def _value(name: str, value: str) -> str:
    if _INLINE_KEY.fullmatch(name):
        message = f"the setting {name} holds a private key"
        raise UsageError(message, "Name a file that holds it instead: ssl.key.location or ssl.keystore.location.")
    if not _ALLOWED.fullmatch(name):
        message = f"{name!r} is not a setting of the Kafka change log"
        raise UsageError(message, "Settings for security and network can be given: security.protocol, sasl.*, ssl.*.")
    if is_reference(value):
        return check_reference(value)
    if _SECRET.fullmatch(name):
        message = f"the setting {name} was given in clear"
        raise UsageError(message, "Name where it is instead: env:NAME (an environment variable) or file:PATH.")
    return value
