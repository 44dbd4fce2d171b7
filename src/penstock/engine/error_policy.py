"""The error policy of a running home: what each class of error means, and when to try again.

::

    TableError, HistoryExpiredError
                                    the table fails; the other tables continue
    TransientError                  retried, at least every 5 s; shown with the table after 5 tries
    LogCorruptError, and a Penstock error outside the work for a table
                                    the source fails and stops; other sources continue
    another Penstock error in the work for one table
                                    shown with the table at once; retried, every minute in the end
    Spark's JVM has ended           `penstock run` restarts Spark, and tables resume; with a session of the user
                                    (`home.run(spark)`) it is a transient error, exit code 4
    any other exception             5 tries with growing pauses; then shown as a defect, with the table or source in
                                    which it occurred; retried every minute, and cleared when it succeeds

Only a few places catch all exceptions, and each consults this module: snapshot, apply and repair of one table, the
loops around them (`table_loops`), the capture process and its supervisor. For an exception that is not Penstock's, only
the type and the place where it was raised are shown, because its text may contain row values. That includes errors of
Spark.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from penstock.errors import (
    HistoryExpiredError,
    InternalError,
    LogCorruptError,
    PenstockError,
    TableError,
    TransientError,
)
from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error
from penstock.spark.worker_errors import brief
from penstock.unexpected_errors import DEFECT_HINT, exception_in_output, unexpected

__all__ = [
    "LONGEST_PAUSE",
    "LONGEST_TRANSIENT_PAUSE",
    "TRIES",
    "ErrorAction",
    "Tries",
    "as_penstock_error",
    "error_action",
    "explained",
    "is_lost",
]

_SAFE_PREFIXES = ("java.io.", "java.nio.", "java.net.", "org.apache.hadoop.", "java.lang.OutOfMemoryError")
"""Java exceptions whose text is about files, hosts and memory, never about row values."""


class ErrorAction(enum.Enum):
    """The response to an error."""

    RETRY = "retry until it succeeds"
    LIMITED = "retry a few times, then show the error and retry slowly"
    END_TABLE = "the table has failed"
    END_SOURCE = "the source has failed"


def error_action(error: BaseException, *, of_table: bool) -> ErrorAction:
    """Return the response to an error, given that Spark is alive; `of_table`: it occurred in work for one table."""
    if isinstance(error, TransientError):
        return ErrorAction.LIMITED if _of_spark(error.__cause__) else ErrorAction.RETRY
    if isinstance(error, TableError | HistoryExpiredError) and of_table:
        return ErrorAction.END_TABLE
    if isinstance(error, LogCorruptError) or not isinstance(error, Exception):
        return ErrorAction.END_SOURCE
    return ErrorAction.END_SOURCE if isinstance(error, PenstockError) and not of_table else ErrorAction.LIMITED


def explained(doing: str, error: BaseException, hint: str = "") -> PenstockError:
    """Translate an error into one of Penstock's, without row values: for the catalog and the status."""
    cause = error.__cause__ if isinstance(error, TransientError) else None
    original = cause if cause is not None and _of_spark(cause) else error
    if isinstance(original, PenstockError):
        return original
    from_worker = exception_in_output(str(original)) if isinstance(original, PythonException) else None
    description = from_worker or _java_description(original)
    if description is not None:
        return InternalError(f"{doing} hit an unexpected {description}", f"{DEFECT_HINT} {hint}".rstrip())
    return unexpected(doing, original, hint)


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that Spark has ended; for the command line."""
    return is_spark_lost(error)


def as_penstock_error(error: BaseException) -> PenstockError | None:
    """Return the Penstock error for an exception that ends a command; None for a defect."""
    if is_spark_lost(error):
        return spark_lost_error(error)
    return error if isinstance(error, PenstockError) else None


def _of_spark(error: BaseException | None) -> bool:
    return isinstance(error, PySparkException | Py4JError)


def _java_description(error: BaseException) -> str | None:
    """Return the name of a Java exception, and its text if that cannot contain row values; None for others."""
    if not isinstance(error, Py4JJavaError):
        return None
    description = brief(error)
    name = description.partition(":")[0]
    return description if name.startswith(_SAFE_PREFIXES) else name.split()[0]


TRIES = 5
"""The number of tries before an error is shown that is not one of Penstock's."""
_FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
LONGEST_TRANSIENT_PAUSE = 5.0
"""For transient errors, which may pass at any moment."""


@dataclass
class Tries:
    """The number of consecutive failures of an operation, and the time of its next try."""

    count: int = 0
    pause: float = 0.0
    _next: float = 0.0

    @property
    def spent(self) -> bool:
        """Whether it failed often enough for the error to be shown."""
        return self.count >= TRIES

    def due(self) -> bool:
        """Whether to try now."""
        return time.monotonic() >= self._next

    def failed(self, *, longest: float = LONGEST_PAUSE) -> None:
        """Count a failure; the pause before the next try doubles, up to `longest`."""
        self.count += 1
        self.pause = min(_FIRST_PAUSE * 2 ** min(self.count - 1, 10), longest)
        self._next = time.monotonic() + self.pause

    def worked(self) -> None:
        """Reset the count after a success."""
        self.count, self.pause, self._next = 0, 0.0, 0.0
