"""SQL files."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import UsageError

__all__ = ["read_script"]


def read_script(file: Path) -> str:
    """Return the text of an SQL file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"could not read file {file}: {error}"
        raise UsageError(message, "Check the path. The file must be UTF-8 text with SQL statements.") from error
