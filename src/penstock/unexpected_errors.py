"""Safe descriptions of unexpected exceptions: their type, and the place where they were raised.

The text of such an exception is never included: it may contain row values, and the description is written to the
catalog, the status and log files. Type and place are enough to find the defect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from penstock.errors import InternalError

__all__ = ["DEFECT_HINT", "exception_in_output", "origin", "trace", "unexpected"]

DEFECT_HINT = "This is a defect in Penstock: please report it, with this line."
_FILE = re.compile(r'File "([^"]+)", line (\d+)')
_KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*)(?=:|$)", re.MULTILINE)


def unexpected(doing: str, error: BaseException, hint: str = "") -> InternalError:
    """Return an `InternalError` that says during which operation an exception occurred, its type and its place."""
    return InternalError(f"{doing} hit an unexpected {origin(error)}", f"{DEFECT_HINT} {hint}".rstrip())


def origin(error: BaseException) -> str:
    """Return type and place, as in ``ValueError at penstock.sources.postgres.pgoutput.chunk_builder:65``."""
    frames = [*_frames(error)]
    ours = [frame for frame in frames if _module(frame[0]).partition(".")[0] == "penstock"]
    places = dict.fromkeys(f"{_module(frame)}:{line}" for frame, line in [*ours[-1:], *frames[-1:]])
    return f"{type(error).__name__} at {', in '.join(places)}" if places else type(error).__name__


def trace(error: BaseException) -> str:
    """Return the stack of an exception and of its causes: types and places, one per line."""
    lines, seen = [], set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines.append(f"{'caused by ' if len(seen) > 1 else ''}{type(cause).__name__}")
        lines += [f"  {_module(frame)}:{line} in {frame.f_code.co_name}" for frame, line in _frames(cause)]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(lines)


def exception_in_output(text: str) -> str | None:
    """Return type and place of the last exception in the output of another process, or None."""
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
    """Return the module that a file contains, if it belongs to Penstock or an installed package; else its name."""
    parts = Path(path).with_suffix("").parts
    for root in ("site-packages", "src"):
        if root in parts:
            return ".".join(parts[len(parts) - parts[::-1].index(root) :])
    return Path(path).name
