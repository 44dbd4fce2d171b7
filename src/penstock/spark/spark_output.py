"""Lines that Spark's JVM prints, as events of the log: those of log4j with their level, and those of the JVM itself.

The text of an exception may quote row values, so a line ends after the name of an exception. Lines that are neither of
log4j nor of the JVM are dropped: stack traces, the rest of a message of several lines, and what Python workers print.
"""

from __future__ import annotations

import re

from penstock.event_log import Event, Level, log_event

__all__ = ["log_spark_line", "spark_event"]

_LOG4J = re.compile(r"^\S+ \S+ spark (FATAL|ERROR|WARN|INFO|DEBUG|TRACE) (\S+): (.*)$")
"""As in ``log4j2.properties``."""
_LEVELS: dict[str, Level] = {"FATAL": "error", "ERROR": "error", "WARN": "warning", "INFO": "info"}
_JVM = re.compile(
    r"^(#|OpenJDK |Java HotSpot|Error occurred during initialization|Error: |Unrecognized |Invalid "
    r"|Exception in thread |java\.lang\.(OutOfMemory|StackOverflow)|Terminating due|WARNING: )"
)
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Exception|Error))\b:.*")


def log_spark_line(line: str) -> None:
    """Log a line that the JVM printed, if it is one worth reading."""
    event = spark_event(line)
    if event is not None:
        log_event(event, "spark")


def spark_event(line: str) -> Event | None:
    """Return the event for a line that the JVM printed, or None."""
    found = _LOG4J.match(line)
    if found is not None:
        level, component, message = found.groups()
        return Event(f"{component}: {_safe(message)}", "spark_log", _LEVELS.get(level, "debug"), component=component)
    if _JVM.match(line):
        return Event(_safe(line), "jvm_output", "debug" if line.startswith("#") else "warning")
    return None


def _safe(text: str) -> str:
    return _EXCEPTION.sub(r"\1", text)
