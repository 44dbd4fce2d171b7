"""Tokens: a line of JSON that says which source wrote it. There is one way to write each; any other text is refused."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["MalformedToken", "check_fields", "read_token", "write_token"]

_VERSION = 1
_HEX = re.compile(r"[0-9a-f]{8,64}")


class MalformedToken(ValueError):
    """A text that no token of ours is."""


def check_fields(number: int, *ids: str) -> None:
    """Hold the fields of a token to sense: a number from 1 on, ids in hexadecimal."""
    if type(number) is not int or not 1 <= number < 1 << 63:  # JSON has true and 1.0 as well
        raise MalformedToken
    if not all(_HEX.fullmatch(text) for text in ids):
        raise MalformedToken


def write_token(fields: dict[str, Any]) -> str:
    """Write fields as a token."""
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":"))


def read_token(text: str, *names: str) -> list[Any]:
    """Return the fields of these names; a text that `write_token` would not have written of them is refused."""
    try:
        read = json.loads(text)
        values = [read[name] for name in names]
        again = write_token(dict(zip(names, values, strict=True)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MalformedToken from error
    if again != text:
        raise MalformedToken
    return values
