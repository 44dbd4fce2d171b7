"""Transfer of Penstock's errors from Spark's Python workers to the driver.

Spark converts an exception in a worker to text. `pack_errors` puts the type and arguments of a `PenstockError` into
that text in a worker, and `unpack_errors` raises it again on the driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from penstock import errors
from penstock.errors import PenstockError

__all__ = ["brief", "pack_errors", "unpack_errors"]

_MARK = re.compile(r"penstock-error:(\{.*?\}):end", re.DOTALL)


def brief(error: BaseException) -> str:
    """Return the first line of Spark's message, which may have hundreds; for a Java error, that of its root cause."""
    text = (_cause(error) if isinstance(error, Py4JJavaError) else str(error)).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


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
