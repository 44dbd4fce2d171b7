"""The log of a running home: one line per event, in a rotated file of the home and on stderr.

::

    Event ── progress callback of the engine ──┐                       ┌─▶ logs/penstock.log   JSON lines, rotated, 0600
    lines that Spark's JVM prints ─────────────┼─▶ logging (stdlib) ───┤
    warnings, libraries, failed threads ───────┘                       └─▶ stderr              text or JSON lines

A line has the time (UTC), the level, the logger (``run``, ``spark``, or a library), the name of the event, its message,
and fields such as ``source`` and ``table``.

No line contains row values or secrets. Messages of Penstock have none. Of exceptions, only type and place are written,
because their texts may quote rows. `redacted` removes what looks like a password from every message, in case a library
prints a connection string.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from penstock.layout import event_log_path
from penstock.private_file import create_folder, private
from penstock.unexpected_errors import origin

__all__ = [
    "FILES",
    "LEVELS",
    "MOST_BYTES",
    "RUN_FAILED",
    "Event",
    "EventFormatter",
    "Level",
    "as_text",
    "log_event",
    "open_event_log",
    "redacted",
]

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
MOST_BYTES, FILES = 10_000_000, 5
"""The size at which the file is rotated, and the number of older files that are kept."""

RUN_FAILED = "run_failed"
"""The event of an error that ended the process."""
_LOGGER = "penstock"


class Event(str):
    """A progress message with a name, a level and fields; to a callback that expects a text, it is that text."""

    name: str
    level: Level
    fields: dict[str, Any]

    def __new__(cls, message: str, name: str, level: Level = "info", **fields: Any) -> Event:
        """Create an event; `fields` name the objects that it is about, and contain no row values."""
        made = super().__new__(cls, message)
        made.name, made.level = name, level
        made.fields = {key: value if isinstance(value, int) else str(value) for key, value in fields.items()}
        return made

    @classmethod
    def of_source(cls, source: str, text: str) -> Event:
        """Return an event, or a plain message, as an event of a source, which its message begins with."""
        event = text if isinstance(text, Event) else cls(text, "progress")
        return cls(f"{source}: {text}", event.name, event.level, source=source, **event.fields)


def log_event(text: str, logger: str = "run") -> None:
    """Log a progress message: the `Progress` callback of a home that runs with a log."""
    event = text if isinstance(text, Event) else Event(text, "progress")
    extra = {"event": event.name, "fields": event.fields}
    logging.getLogger(f"{_LOGGER}.{logger}").log(_number(event.level), "%s", str(event), extra=extra)


@contextmanager
def open_event_log(
    home: Path,
    level: Level = "info",
    form: Literal["text", "json"] = "text",
    write: Callable[[str], object] | None = None,
) -> Iterator[None]:
    """Write events to the log of a home, and as lines to `write`, while the ``with`` block lasts.

    Only the process that runs the home opens its log.
    """
    file = _RotatedFile(event_log_path(home))
    file.setFormatter(EventFormatter("json"))
    handlers: list[logging.Handler] = [file]
    if write is not None:
        handlers.append(_Lines(write, EventFormatter(form)))
    root, ours = logging.getLogger(), logging.getLogger(_LOGGER)
    before = (ours.level, threading.excepthook)
    ours.setLevel(_number(level))
    threading.excepthook = _log_failed_thread
    logging.captureWarnings(True)
    for handler in handlers:
        handler.addFilter(_level_filter(_number(level)))
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            with suppress(OSError):  # what a full disk did not take
                handler.close()
        logging.captureWarnings(False)
        ours.setLevel(before[0])
        threading.excepthook = before[1]


# -- lines -------------------------------------------------------------------------------------------------------------


class EventFormatter(logging.Formatter):
    """Formats a record as a line of text or as a JSON object, without the text of an exception."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        found = _document(record)
        return json.dumps(found, ensure_ascii=False) if self._form == "json" else as_text(found)


def _document(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    message = redacted(" ".join(record.getMessage().split()))
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        message = f"{message} ({origin(error)})"
    return {
        "at": at,
        "level": record.levelname.lower(),
        "logger": record.name.removeprefix(f"{_LOGGER}."),
        "event": getattr(record, "event", "message"),
        "message": message,
        **getattr(record, "fields", {}),
    }


def as_text(found: dict[str, Any]) -> str:
    """Return the line of text for an event that was logged as JSON; the message names the objects of the fields."""
    return f"{found['at']} {found['level'].upper():<7} {found['logger']}: {found['message']}"


_PASSWORD_IN_URL = re.compile(r"(\b\w[\w+.-]*://[^\s:/@]*):[^\s/@]+@")
_PASSWORD = re.compile(r"(?i)\b([\w.-]*(?:password|passwd|secret|token))\b(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;)]+)")


def redacted(text: str) -> str:
    """Replace passwords in connection strings and options by ``***``."""
    return _PASSWORD.sub(r"\1\2***", _PASSWORD_IN_URL.sub(r"\1:***@", text))


# -- logging -----------------------------------------------------------------------------------------------------------


class _RotatedFile(logging.handlers.RotatingFileHandler):
    """A file that only its owner can read; if it cannot be written, the home continues without it."""

    def __init__(self, path: Path) -> None:
        create_folder(path.parent)
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=FILES, encoding="utf-8", delay=True)

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a full disk, which is reported elsewhere."""


class _Lines(logging.Handler):
    """Passes lines to a function."""

    def __init__(self, write: Callable[[str], object], formatter: logging.Formatter) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, but not the error that ends the command, which prints it; ignore a closed terminal."""
        if getattr(record, "event", None) == RUN_FAILED:
            return
        try:
            self._write(self.format(record))
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error."""


def _level_filter(lowest: int) -> Callable[[logging.LogRecord], bool]:
    """Return a filter: events of Penstock from a level on; of libraries, warnings and errors.

    Py4J logs each call to a JVM that has ended as an error, with a traceback: these are for debugging.
    """

    def wanted(record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] == _LOGGER:
            return record.levelno >= lowest
        least = logging.CRITICAL if "py4j" in Path(record.pathname).parts else logging.WARNING
        return lowest <= logging.DEBUG or record.levelno >= max(lowest, least)

    return wanted


def _log_failed_thread(failed: threading.ExceptHookArgs) -> None:
    name = failed.thread.name if failed.thread is not None else "a thread"
    what = origin(failed.exc_value) if failed.exc_value is not None else failed.exc_type.__name__
    log_event(Event(f"{name} ended with an unexpected {what}", "thread_failed", "error"))


def _number(level: Level) -> int:
    return cast("int", getattr(logging, level.upper()))
