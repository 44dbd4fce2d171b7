"""The files of a folder, and whether a file still has the contents that were read from it.

A *fingerprint* identifies a file: a checksum of the first and the last few thousand bytes that were read. It detects a
file that was truncated or replaced; it does not detect a change in the middle of a file of the same size.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.errors import DefiniteError, TransientError

__all__ = ["FoundFile", "fingerprint", "found_files"]

_ENDS = 4096


@dataclass(frozen=True)
class FoundFile:
    """A file with its properties when the folder was listed."""

    path: Path
    size: int
    changed_at: int
    """The inode change time, in microseconds since 1970, which programs cannot set."""
    written_at: int
    """The modification time, in nanoseconds, which programs can set."""

    @property
    def name(self) -> str:
        """The name in the folder."""
        return self.path.name


def found_files(folder: Path, pattern: str) -> list[FoundFile]:
    """Return the files in a folder, sorted by name."""
    try:
        return sorted(_found(folder, pattern), key=lambda file: file.name)
    except OSError as error:
        message = f"could not read folder {folder}: {error.strerror}"
        raise TransientError(message, "Check that it exists, is mounted, and is readable for this user.") from error


def _found(folder: Path, pattern: str) -> Iterator[FoundFile]:
    for path in folder.iterdir():
        if path.name.startswith((".", "_")) or not fnmatchcase(path.name, pattern):
            continue
        _check_encoding(path)
        try:
            status = path.stat()
        except FileNotFoundError:  # removed in the meantime, or a dangling link
            continue
        if stat.S_ISREG(status.st_mode):
            yield FoundFile(path, status.st_size, status.st_ctime_ns // 1000, status.st_mtime_ns)


def _check_encoding(path: Path) -> None:
    """Raise `DefiniteError` unless the name is valid text: progress is stored by file name."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        message = f"folder {path.parent} contains a file whose name is not valid UTF-8"
        raise DefiniteError(
            message, "Rename it, or set the option pattern so that it does not match the name."
        ) from None


def fingerprint(path: Path, upto: int) -> int:
    """Return the fingerprint of the first `upto` bytes of a file, or of the whole file if it is shorter."""
    with path.open("rb") as file:
        head = file.read(min(_ENDS, upto))
        file.seek(max(0, upto - _ENDS))
        return zlib.crc32(file.read(min(_ENDS, upto)), zlib.crc32(head))
