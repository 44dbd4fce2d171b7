"""Our errors across the border between Spark's Python workers and the driver.

Spark turns an exception in a worker into text. A `PenstockError` that leaves a worker through `carrying` takes its
type and arguments with it, and `delivering` raises it again on the driver.
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

__all__ = ["brief", "carrying", "delivering"]

_MARK = re.compile(r"penstock-error:(\{.*?\}):end", re.DOTALL)


def brief(error: BaseException) -> str:
    """Return the first line of what Spark says, which may be hundreds; of an error of Java's, that of its cause."""
    said = (_cause(error) if isinstance(error, Py4JJavaError) else str(error)).strip()
    return said.splitlines()[0][:200] if said else type(error).__name__


def _cause(error: Py4JJavaError) -> str:
    with suppress(Py4JError):  # Java may have ended
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause.toString())
    return str(error.args[0])


@contextmanager
def carrying() -> Iterator[None]:
    """In a worker: pack our errors for the way to the driver."""
    try:
        yield
    except PenstockError as error:
        packed = json.dumps({"type": type(error).__name__, "args": list(error.args)})
        message = f"penstock-error:{packed}:end"
        raise RuntimeError(message) from error


@contextmanager
def delivering() -> Iterator[None]:
    """On the driver: unpack them."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = _MARK.search(str(error))
        if found is None:
            raise
        packed = json.loads(found.group(1))
        raise getattr(errors, packed["type"])(*packed["args"]) from None
