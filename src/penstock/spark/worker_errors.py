"""Errors of Spark's Python processes: their transfer to the driver, and tracebacks that are not printed.

Spark converts an exception in a worker to text. `pack_errors` puts the type and arguments of a `PenstockError` into
that text in a worker, and `unpack_errors` raises it again on the driver.

Spark plans a Python data source in a small Python process, reads the plan and closes the connection. The process then
flushes once more, and PySpark's daemon prints a meaningless traceback of BrokenPipeError to the user's terminal. That
process imports every module with a Penstock data source, and each of them calls `silence_broken_pipes`.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from penstock import errors
from penstock.errors import PenstockError
from penstock.unexpected_errors import exception_in_output

__all__ = ["brief", "pack_errors", "silence_broken_pipes", "unpack_errors"]

_MARK = re.compile(r"penstock-error:(\{.*?\}):end", re.DOTALL)


_SAFE_PREFIXES = ("java.io.", "java.nio.", "java.net.", "org.apache.hadoop.", "java.lang.OutOfMemoryError")
"""Java exceptions whose text is about files, hosts and memory, never about row values."""


def brief(error: BaseException) -> str:
    """Describe an error of Spark or Penstock in one line without row values, which the texts of many errors quote.

    Errors of analysis are about names and types: their first line is returned. For a Java error it is the type of its
    root cause, with its text if that is about files or hosts; for an error of a Python worker, its type and place.
    """
    if isinstance(error, PenstockError):
        return error.message
    if isinstance(error, AnalysisException):
        return _first_line(str(error)) or type(error).__name__
    if isinstance(error, PythonException):
        return exception_in_output(str(error)) or type(error).__name__
    if isinstance(error, Py4JJavaError):
        text = _first_line(_cause(error))
        name = text.partition(":")[0]
        return text if name.startswith(_SAFE_PREFIXES) else (name.split() or [type(error).__name__])[0]
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return f"{type(error).__name__} [{condition}]" if condition else type(error).__name__


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]


def _cause(error: Py4JJavaError) -> str:
    with suppress(Py4JError):  # the JVM may have ended
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause.toString())
    return str(error.args[0])


@contextmanager
def pack_errors() -> Iterator[None]:
    """Pack errors for the transfer to the driver; used in a worker."""
    try:
        yield
    except PenstockError as error:
        packed = json.dumps({"type": type(error).__name__, "args": list(error.args)})
        message = f"penstock-error:{packed}:end"
        raise RuntimeError(message) from error


@contextmanager
def unpack_errors() -> Iterator[None]:
    """Raise errors that a worker packed; used on the driver."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = _MARK.search(str(error))
        if found is None:
            raise
        packed = json.loads(found.group(1))
        raise getattr(errors, packed["type"])(*packed["args"]) from None


# -- broken pipes ------------------------------------------------------------------------------------------------------

_print_exc = traceback.print_exc


def silence_broken_pipes() -> None:
    """Stop printing BrokenPipeErrors if this process is a PySpark daemon; otherwise do nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        traceback.print_exc = _print_unless_broken_pipe


def _print_unless_broken_pipe(*arguments: Any, **options: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc(*arguments, **options)
