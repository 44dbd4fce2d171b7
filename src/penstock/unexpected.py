"""What can be said of an exception that nobody expected: which one it is, and where it was raised.

Never what it says: such a text may hold values of rows, and goes where these do not belong: into the catalog, the
status and log files. With the place, a defect can be found all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from penstock.errors import InternalError

__all__ = ["REPORT", "origin", "told_by", "trace", "unexpected"]

REPORT = "This is a defect in Penstock: please report it, with this line."
_FILE = re.compile(r'File "([^"]+)", line (\d+)')
_KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*)(?=:|$)", re.MULTILINE)


def unexpected(doing: str, error: BaseException, hint: str = "") -> InternalError:
    """Put an exception into our words: during what it came, which it is and where it was raised."""
    return InternalError(f"{doing} hit an unexpected {origin(error)}", f"{REPORT} {hint}".rstrip())


def origin(error: BaseException) -> str:
    """Return type and place, as in ``ValueError at penstock.sources.postgres.build:65``."""
    frames = [*_frames(error)]
    ours = [frame for frame in frames if _module(frame[0]).partition(".")[0] == "penstock"]
    places = dict.fromkeys(f"{_module(frame)}:{line}" for frame, line in [*ours[-1:], *frames[-1:]])
    return f"{type(error).__name__} at {', in '.join(places)}" if places else type(error).__name__


def trace(error: BaseException) -> str:
    """Return the whole stack, of this exception and of those behind it: types and places, one on a line."""
    lines, seen = [], set[int]()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        lines.append(f"{'caused by ' if len(seen) > 1 else ''}{type(behind).__name__}")
        lines += [f"  {_module(frame)}:{line} in {frame.f_code.co_name}" for frame, line in _frames(behind)]
        behind = behind.__cause__ or behind.__context__
    return "\n".join(lines)


def told_by(text: str) -> str | None:
    """Return type and place of the last exception in what another process printed; None where there is none."""
    places = [*_FILE.finditer(text)]
    kinds = [*_KIND.finditer(text, places[-1].end())] if places else []
    if not kinds:
        return None
    return f"{kinds[-1][1]} at {_as_module(places[-1][1])}:{places[-1][2]}"


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame, step.tb_lineno
        step = step.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _as_module(path: str) -> str:
    """Name the module in a file, where it is one of ours or of a package that is installed; else the file."""
    parts = Path(path).with_suffix("").parts
    for root in ("site-packages", "src"):
        if root in parts:
            return ".".join(parts[len(parts) - parts[::-1].index(root) :])
    return Path(path).name
