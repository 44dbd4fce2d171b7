"""Files for secrets: readable by this user alone, and whole at any moment."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from penstock.errors import DefiniteError

__all__ = ["write_private"]


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600, in a folder that is made with mode 700 where it is missing.

    It is written beside its place and renamed, so that whoever reads it meanwhile sees the old text or the new one. A
    file that has this text already stays as it is.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _holds(path, text):
            _replace(path, text)
    except OSError as error:
        message = f"the private file {path} cannot be written: {error.strerror}"
        raise DefiniteError(message, "Name a folder that this user can write to.") from None


def _holds(path: Path, text: str) -> bool:
    with suppress(FileNotFoundError, UnicodeDecodeError):
        return path.stat().st_mode & 0o777 == 0o600 and path.read_text(encoding="utf-8") == text
    return False


def _replace(path: Path, text: str) -> None:
    number, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # of mode 600 from the start
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(beside).unlink()
        raise
