"""Files of statements."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import UsageError

__all__ = ["read_script"]


def read_script(file: Path) -> str:
    """Read a file of statements."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the file {file} cannot be read: {error}"
        raise UsageError(message, "Name a text file with statements in it.") from error
