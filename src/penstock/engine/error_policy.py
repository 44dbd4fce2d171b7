"""The error policy of a running home: what each class of error means, and when to try again.

::

    TableError, HistoryExpiredError         the table fails; the other tables continue
    TransientError                  retried, at least every 5 s; shown with the table after 5 tries
    LogCorruptError, and a Penstock error outside the work for a table
                                    the source fails and stops; other sources continue
    another Penstock error in the work for one table
                                    shown with the table at once; retried, every minute in the end
    Spark's JVM has ended           `penstock run` ends with exit code 4; the next run resumes
    any other exception             5 tries with growing pauses; then shown as a defect, with the table or source in
                                    which it occurred; retried every minute, and cleared when it succeeds

Only a few places catch all exceptions, and each asks here: snapshot, apply and repair of one table, the loops around
them (`table_loops`), the capture process and its supervisor. Of a foreign exception only the type and the place where
it was raised are shown, because its text may contain row values. That includes errors of Spark.
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
from penstock.spark.boundary import brief
from penstock.spark.loss import dead_spark, lost
from penstock.unexpected import REPORT, told_by, unexpected

__all__ = [
    "LONGEST_PAUSE",
    "LONGEST_TRANSIENT_PAUSE",
    "TRIES",
    "Recourse",
    "Tries",
    "explained",
    "in_our_words",
    "is_lost",
    "recourse",
]

_PLAIN = ("java.io.", "java.nio.", "java.net.", "org.apache.hadoop.", "java.lang.OutOfMemoryError")
"""Errors of Java that speak of files, hosts and memory, never of values."""


class Recourse(enum.Enum):
    """What to do about an error."""

    RETRY = "try again for as long as it lasts"
    LIMITED = "try again a few times, then show it, and try again slowly"
    END_TABLE = "the table has failed"
    END_SOURCE = "the source has failed"


def recourse(error: BaseException, *, of_table: bool) -> Recourse:
    """Say what to do about an error, where Spark is still there; `of_table`: it came in the work for one table."""
    if isinstance(error, TransientError):
        return Recourse.LIMITED if _of_spark(error.__cause__) else Recourse.RETRY
    if isinstance(error, TableError | HistoryExpiredError) and of_table:
        return Recourse.END_TABLE
    if isinstance(error, LogCorruptError) or not isinstance(error, Exception):
        return Recourse.END_SOURCE
    return Recourse.END_SOURCE if isinstance(error, PenstockError) and not of_table else Recourse.LIMITED


def explained(doing: str, error: BaseException, hint: str = "") -> PenstockError:
    """Put an error into our words, without values of rows: for the catalog, and so for the status."""
    cause = error.__cause__ if isinstance(error, TransientError) else None
    known = cause if cause is not None and _of_spark(cause) else error
    if isinstance(known, PenstockError):
        return known
    worker = told_by(str(known)) if isinstance(known, PythonException) else None
    said = worker or _of_java(known)
    if said is not None:
        return InternalError(f"{doing} hit an unexpected {said}", f"{REPORT} {hint}".rstrip())
    return unexpected(doing, known, hint)


def is_lost(error: BaseException) -> bool:
    """Say whether an error came of Spark, which is gone; for the command line."""
    return lost(error)


def in_our_words(error: BaseException) -> PenstockError | None:
    """Return the error of ours that an error at the end of a command stands for; None for a defect."""
    if lost(error):
        return dead_spark()
    return error if isinstance(error, PenstockError) else None


def _of_spark(error: BaseException | None) -> bool:
    return isinstance(error, PySparkException | Py4JError)


def _of_java(error: BaseException) -> str | None:
    """Name an error of Java's, and what it says where that holds no values."""
    if not isinstance(error, Py4JJavaError):
        return None
    said = brief(error)
    name = said.partition(":")[0]
    return said if name.startswith(_PLAIN) else name.split()[0]


TRIES = 5
"""So many tries before an error that is not ours is shown."""
_FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
LONGEST_TRANSIENT_PAUSE = 5.0
"""Of what may pass by itself at any moment."""


@dataclass
class Tries:
    """How often something has failed without ever having worked in between, and when it is to be tried again."""

    count: int = 0
    pause: float = 0.0
    _next: float = 0.0

    @property
    def spent(self) -> bool:
        """Whether it failed so often that it is to be shown."""
        return self.count >= TRIES

    def due(self) -> bool:
        """Whether to try now."""
        return time.monotonic() >= self._next

    def failed(self, *, longest: float = LONGEST_PAUSE) -> None:
        """Note that it failed; the next try comes after a pause that grows, to at most `longest`."""
        self.count += 1
        self.pause = min(_FIRST_PAUSE * 2 ** min(self.count - 1, 10), longest)
        self._next = time.monotonic() + self.pause

    def worked(self) -> None:
        """Note that it works."""
        self.count, self.pause, self._next = 0, 0.0, 0.0
