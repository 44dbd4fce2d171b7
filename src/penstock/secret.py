"""References to secrets: where a password is found, never the password itself.

``env:NAME`` is an environment variable, ``file:PATH`` the first line of a file. A reference may be stored, logged and
shown. What it refers to is read when a connection is opened, and goes to libpq alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import DefiniteError, UsageError

__all__ = ["check_reference", "is_reference", "resolve"]

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+", re.DOTALL)


def is_reference(text: str) -> bool:
    """Say whether this is a reference, and not a secret in clear."""
    return _REFERENCE.fullmatch(text) is not None


def check_reference(text: str) -> str:
    """Return a reference that means the same in any folder; refuse a secret in clear, without repeating it."""
    if not is_reference(text):
        message = "a password was given in clear"
        raise UsageError(message, "Name where it is instead: env:NAME (an environment variable) or file:PATH.")
    kind, _, where = text.partition(":")
    return f"file:{Path(where).expanduser().absolute()}" if kind == "file" else text


def resolve(reference: str) -> str:
    """Read the secret. Do this only right before it is used."""
    kind, _, where = reference.partition(":")
    return _from_environment(where) if kind == "env" else _from_file(Path(where))


def _from_environment(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        message = f"the environment variable {name}, which should hold the password, is not set"
        raise DefiniteError(message, f"Set {name} where Penstock is started.")
    return found


def _from_file(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        message = f"the password file {path} cannot be read: {why}"
        raise DefiniteError(message, "Put the password into its first line, readable for this user.") from None
    if not lines or not lines[0]:
        message = f"the password file {path} is empty"
        raise DefiniteError(message, "Put the password into its first line.")
    return lines[0]
