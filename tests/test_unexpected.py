"""What is said of an exception: type and place, never a value."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from penstock.engine.error_policy import Recourse, explained, recourse
from penstock.errors import (
    DefiniteError,
    HistoryExpiredError,
    InternalError,
    LogCorruptError,
    TableError,
    TransientError,
)
from penstock.unexpected import origin, told_by, trace, unexpected
from penstock.units import parse_size

WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/site-packages/penstock/tables/parquet_files.py", line 135, in _add_bounds
    found["maxValues"][name] = _moment(high + timedelta(microseconds=999))
                                       ~~~~~^~~~~~~~~
OverflowError: the value 42 is out of range
"""


def raised(value: object) -> BaseException:
    try:
        parse_size(value)  # type: ignore[arg-type]
    except Exception as error:
        return error
    raise AssertionError


def test_type_and_place_and_no_value() -> None:
    error = raised(4711)
    assert origin(error).startswith(f"{type(error).__name__} at penstock.units:")
    told = unexpected("reading", error, "Then do this.")
    assert isinstance(told, InternalError)
    assert told.message.startswith("reading hit an unexpected ")
    assert "please report it" in told.hint and told.hint.endswith("Then do this.")
    assert "in parse_size" in trace(error)
    assert "4711" not in told.message + told.hint + trace(error)


def test_those_behind_it_are_in_the_trace() -> None:
    try:
        try:
            raise ValueError("a secret")
        except ValueError as inner:
            raise KeyError("another") from inner
    except KeyError as error:
        told = trace(error)
    assert "KeyError" in told and "caused by ValueError" in told
    assert "secret" not in told and "another" not in told


def test_what_never_was_raised_has_no_place() -> None:
    assert origin(ValueError("x")) == "ValueError"


def test_what_a_worker_of_spark_printed() -> None:
    assert told_by(WORKER) == "OverflowError at penstock.tables.parquet_files:135"
    assert told_by("nothing of the kind") is None
    broke_off = TransientError("the copy broke off: 42")
    broke_off.__cause__ = PythonException(WORKER)
    told = explained("copying public.t", broke_off)
    assert told.message == "copying public.t hit an unexpected OverflowError at penstock.tables.parquet_files:135"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("java.io.IOException: No space left on device", "java.io.IOException: No space left on device"),
        ("java.lang.IllegalArgumentException: the value 42", "java.lang.IllegalArgumentException"),
    ],
)
def test_errors_of_java(monkeypatch: pytest.MonkeyPatch, said: str, shown: str) -> None:
    error = Py4JJavaError.__new__(Py4JJavaError)
    monkeypatch.setattr("penstock.engine.error_policy.brief", lambda _: said)
    assert explained("applying t", error).message == f"applying t hit an unexpected {shown}"


def spark_broke() -> TransientError:
    error = TransientError("applying broke off")
    error.__cause__ = PySparkException("x")
    return error


@pytest.mark.parametrize(
    ("error", "of_table", "outside"),
    [
        (TableError("public.t", 7, "x"), Recourse.END_TABLE, Recourse.END_SOURCE),
        (HistoryExpiredError("x"), Recourse.END_TABLE, Recourse.END_SOURCE),
        (LogCorruptError("x"), Recourse.END_SOURCE, Recourse.END_SOURCE),
        (DefiniteError("x"), Recourse.LIMITED, Recourse.END_SOURCE),
        (TransientError("x"), Recourse.RETRY, Recourse.RETRY),
        (spark_broke(), Recourse.LIMITED, Recourse.LIMITED),
        (PySparkException("x"), Recourse.LIMITED, Recourse.LIMITED),
        (ValueError("x"), Recourse.LIMITED, Recourse.LIMITED),
        (SystemExit(), Recourse.END_SOURCE, Recourse.END_SOURCE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_becomes_of_errors(error: BaseException, of_table: Recourse, outside: Recourse) -> None:
    assert (recourse(error, of_table=True), recourse(error, of_table=False)) == (of_table, outside)
