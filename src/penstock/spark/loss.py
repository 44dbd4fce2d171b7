"""Whether an error means that Spark is gone: the one place that decides it.

What the driver sees of a JVM that was killed depends on the moment: Py4J's network error, an empty answer, a connection
that is refused or reset, the end of a file; and while a JVM shuts down, Java's own complaint that its context is
stopped. What comes after that is anything: attributes of None, packages that cannot be called. So the error is not
asked, the JVM is: it has ended, or it ends within a moment if the error looks like a connection that broke.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError

from penstock.errors import PenstockError, TransientError
from penstock.spark.session import is_alive

__all__ = ["dead_spark", "is_of_spark", "lost"]

_LAST_BREATH_SECONDS = 10.0
"""A connection breaks a moment before the process at its other end is gone."""
_LOOK_SECONDS = 0.1
_CLOSED = (errno.EBADF, errno.ENOTCONN, errno.EPIPE)
_STARTING = "JAVA_GATEWAY_EXITED"
_ENDING = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "SparkContext has been shutdown",
    "Shutdown in progress",
)


def lost(error: BaseException) -> bool:
    """Say whether Spark is gone, and `error` came of that."""
    if isinstance(error, PenstockError) and not is_of_spark(error):
        return False
    if any(_failed_to_start(each) for each in _chain(error)):
        return True
    if SparkContext._gateway is None:  # there is none that could be gone
        return False
    give_up = time.monotonic() + (_LAST_BREATH_SECONDS if any(map(_broken, _chain(error))) else 0.0)
    while _answers():
        if time.monotonic() >= give_up:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def is_of_spark(error: BaseException) -> bool:
    """Say whether an error, or one behind it, came from Spark."""
    return any(isinstance(each, PySparkException | Py4JError | OSError | EOFError) for each in _chain(error))


def dead_spark() -> TransientError:
    """Return what to say then."""
    said = "Spark's JVM has ended: nothing is applied any more"
    return TransientError(said, "Start again; nothing is lost, and it goes on where it was.")


def _answers() -> bool:
    """Ask the JVM: by its process, where we have started it; else by a call."""
    gateway: Any = SparkContext._gateway
    if getattr(gateway, "proc", None) is not None:
        return is_alive()
    try:
        gateway.jvm.System.nanoTime()
    except (Py4JError, OSError, EOFError):
        return False
    return True


def _broken(error: BaseException) -> bool:
    """Whether it looks like a connection to a JVM that ends."""
    if isinstance(error, Py4JJavaError | PySparkException):  # the JVM has answered
        return any(words in _said(error) for words in _ENDING)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return error.errno in _CLOSED
    return isinstance(error, Py4JError | ConnectionError | EOFError)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except (Py4JError, OSError, EOFError):  # the text of Java's errors is asked of Java
        return _ENDING[0]


def _failed_to_start(error: BaseException) -> bool:
    return isinstance(error, PySparkRuntimeError) and error.getCondition() == _STARTING


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it."""
    seen = set[int]()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        yield behind
        behind = behind.__cause__ or behind.__context__
