"""Which files of a base table are worth writing anew.

Every merge adds small files and marks rows of older ones as deleted. Three things make merges and queries dearer with
time, and each has its rule:

- **small** files, when there are many of them;
- files that are **eaten**: a good part of their rows is deleted;
- files that lie **over one another**: many hold keys from the same range, so none of them can be passed by.

What is chosen together is written sorted by the key, into files that follow one another. So the rules come to an end:
afterwards there are fewer small files, no deleted rows, and of the chosen files no two lie over one another.

One step takes a limited number of bytes: its cost follows what has worn off, not the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["TARGET_BYTES", "FileState", "worn_files"]

TARGET_BYTES = 64 << 20
"""How large a file is to become."""
_SMALL_BYTES = TARGET_BYTES // 4
_MANY_SMALL = 40
_EATEN = 0.2
_DEEP = 8
_STEP_BYTES = 512 << 20


class FileState(NamedTuple):
    """One file of a table."""

    path: str
    size: int
    rows: int
    deleted: int
    """How many of its rows are gone."""
    low: int | None = None
    high: int | None = None
    """Where its first and last keys stand in the order of all such keys; None where that is not known."""


def worn_files(files: Sequence[FileState], step: int = _STEP_BYTES) -> list[FileState]:
    """Choose the files of one step; none where the table is in good order."""
    small = [file for file in files if file.size < _SMALL_BYTES]
    eaten = [file for file in files if file.size >= _SMALL_BYTES and file.deleted > _EATEN * file.rows]
    deep = _deepest(files)
    wanted = [*(small if len(small) > _MANY_SMALL else []), *eaten, *(deep if len(deep) >= _DEEP else [])]
    chosen: list[FileState] = []
    taken = 0
    for file in dict.fromkeys(wanted):
        if chosen and taken + file.size > step:
            break
        chosen.append(file)
        taken += file.size
    return chosen


def _deepest(files: Sequence[FileState]) -> list[FileState]:
    """Return the files that hold keys on both sides of one point: the point where they are most.

    A file whose keys all begin alike has nothing on both sides of any point: it cannot be divided further.
    """
    begins = [
        (file.low, 1) for file in files if file.low is not None and file.high is not None and file.low < file.high
    ]
    ends = [(file.high, 0) for file in files if file.low is not None and file.high is not None and file.low < file.high]
    open_files = most = 0
    point = None
    for place, begin in sorted([*begins, *ends]):  # at one place, ends come first
        open_files += 1 if begin else -1
        if open_files > most:
            most, point = open_files, place
    if point is None:
        return []
    return [f for f in files if f.low is not None and f.high is not None and f.low <= point < f.high]
