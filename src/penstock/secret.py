"""References to secrets: where a password is found, never the password itself.

``env:NAME`` is an environment variable, ``file:PATH`` the first line of a file. A reference may be stored, logged and
displayed. The secret is read when a connection is opened, and passed to the client library only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import DefiniteError, UsageError

__all__ = ["check_reference", "is_reference", "resolve"]

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+", re.DOTALL)


def is_reference(text: str) -> bool:
    """Return whether a text is a reference, not a plaintext secret."""
    return _REFERENCE.fullmatch(text) is not None


def check_reference(text: str) -> str:
    """Return a reference that is valid in any working directory; reject a plaintext secret, without printing it."""
    if not is_reference(text):
        message = "plaintext passwords are not accepted"
        raise UsageError(message, "Write a reference instead: env:NAME (an environment variable) or file:PATH.")
    kind, _, where = text.partition(":")
    return f"file:{Path(where).expanduser().absolute()}" if kind == "file" else text


def resolve(reference: str) -> str:
    """Return the secret. Call this only right before the secret is used."""
    kind, _, where = reference.partition(":")
    return _from_environment(where) if kind == "env" else _from_file(Path(where))


def _from_environment(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        message = f"the environment variable {name}, which should hold the password, is not set"
        raise DefiniteError(message, f"Set {name} in the environment of Penstock.")
    return found


def _from_file(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "not a text file"
        message = f"the password file {path} cannot be read: {why}"
        raise DefiniteError(message, "Put the password in its first line, readable by this user.") from None
    if not lines or not lines[0]:
        message = f"the password file {path} is empty"
        raise DefiniteError(message, "Put the password in its first line.")
    return lines[0]
