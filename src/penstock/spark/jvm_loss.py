"""Decides whether an error means that Spark's JVM has ended.

The error that the driver sees when a JVM is killed depends on timing: Py4J's network error, an empty response, a
refused or reset connection, an end of file; and while a JVM shuts down, a Java error about a stopped context.
Subsequent errors are arbitrary: attributes of None, packages that cannot be called. So the decision rests on the JVM,
not on the error: the JVM has ended, or, if the error looks like a broken connection, it ends within a few seconds.
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

__all__ = ["is_spark_error", "is_spark_lost", "spark_lost_error", "spark_start_error"]

_EXIT_SECONDS = 10.0
"""A connection breaks shortly before the process at its other end has ended."""
_LOOK_SECONDS = 0.1
_CLOSED = (errno.EBADF, errno.ENOTCONN, errno.EPIPE)
_STARTING = "JAVA_GATEWAY_EXITED"
_ENDING = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "SparkContext has been shutdown",
    "Shutdown in progress",
)


def is_spark_lost(error: BaseException) -> bool:
    """Return whether Spark's JVM has ended and caused `error`."""
    if isinstance(error, PenstockError) and not is_spark_error(error):
        return False
    if any(_failed_to_start(each) for each in _chain(error)):
        return True
    if SparkContext._gateway is None:  # no JVM was started
        return False
    give_up = time.monotonic() + (_EXIT_SECONDS if any(map(_is_broken_connection, _chain(error))) else 0.0)
    while _is_responding():
        if time.monotonic() >= give_up:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def is_spark_error(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, came from Spark."""
    return any(isinstance(each, PySparkException | Py4JError | OSError | EOFError) for each in _chain(error))


def spark_lost_error(error: BaseException | None = None) -> TransientError:
    """Return the error to report when Spark's JVM has ended, as `error` shows if it is given."""
    if error is not None and any(map(_failed_to_start, _chain(error))):
        return spark_start_error()
    message = "Spark's JVM has ended; changes are no longer applied"
    hint = "`penstock run` restarts it; with a session of your own, run the home with a new one. No data is lost."
    return TransientError(message, hint)


def spark_start_error() -> TransientError:
    """Return the error to report when Spark's JVM has ended before it was ready."""
    hint = (
        "What it printed says why: see above, or `penstock logs`. Check `java -version` with JAVA_HOME, "
        "PENSTOCK_DRIVER_MEMORY, and the free memory of the machine."
    )
    return TransientError("Spark's JVM ended while it was started", hint)


def _is_responding() -> bool:
    """Return whether the JVM responds: by its process if this process started it, else by a call."""
    gateway: Any = SparkContext._gateway
    if getattr(gateway, "proc", None) is not None:
        return is_alive()
    try:
        gateway.jvm.System.nanoTime()
    except (Py4JError, OSError, EOFError):
        return False
    return True


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether an error looks like a connection to a JVM that is ending."""
    if isinstance(error, Py4JJavaError | PySparkException):  # the JVM responded
        return any(words in _text(error) for words in _ENDING)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return error.errno in _CLOSED
    return isinstance(error, Py4JError | ConnectionError | EOFError)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except (Py4JError, OSError, EOFError):  # the text of a Java error is read from the JVM
        return _ENDING[0]


def _failed_to_start(error: BaseException) -> bool:
    return isinstance(error, PySparkRuntimeError) and error.getCondition() == _STARTING


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
