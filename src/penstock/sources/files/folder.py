"""A folder of files: which there are, and whether one is still what was read of it.

A file that was read is known by a *print*: a checksum of its first and of the last few thousand bytes that were taken
in. That a file shrank, or is another one now, is noticed by it; what was changed in the middle, with the same size
and the same ends, is not.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.errors import DefiniteError, TransientError

__all__ = ["FoundFile", "found_files", "print_of"]

_ENDS = 4096


@dataclass(frozen=True)
class FoundFile:
    """A file as it was when the folder was looked at."""

    path: Path
    size: int
    changed_at: int
    """When the file last became another, or came here, in microseconds since 1970: nobody can set this time."""
    written_at: int
    """When its contents last changed, in nanoseconds; anybody can set this."""

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self.path.name


def found_files(folder: Path, pattern: str) -> list[FoundFile]:
    """List the files in a folder, by name."""
    try:
        return sorted(_found(folder, pattern), key=lambda file: file.name)
    except OSError as error:
        message = f"the folder {folder} cannot be read: {error.strerror}"
        raise TransientError(message, "Is it there, mounted, and readable for this user?") from error


def _found(folder: Path, pattern: str) -> Iterator[FoundFile]:
    for path in folder.iterdir():
        if path.name.startswith((".", "_")) or not fnmatchcase(path.name, pattern):
            continue
        _refuse_unwritable(path)
        try:
            told = path.stat()
        except FileNotFoundError:  # it went meanwhile, or is a link to nothing
            continue
        if stat.S_ISREG(told.st_mode):
            yield FoundFile(path, told.st_size, told.st_ctime_ns // 1000, told.st_mtime_ns)


def _refuse_unwritable(path: Path) -> None:
    """What was taken in of a file is noted by its name, which has to be a text for that."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        message = f"the folder {path.parent} has a file whose name is not UTF-8"
        raise DefiniteError(message, "Rename it; or choose files by a pattern that does not fit its name.") from None


def print_of(path: Path, upto: int) -> int:
    """Return the print of a file, up to a number of bytes; of one that is shorter, that of what is there."""
    with path.open("rb") as file:
        head = file.read(min(_ENDS, upto))
        file.seek(max(0, upto - _ENDS))
        return zlib.crc32(file.read(min(_ENDS, upto)), zlib.crc32(head))
