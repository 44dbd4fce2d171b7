"""Reports of unexpected exceptions: type and code location, never a value."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from penstock.engine.error_policy import ErrorAction, error_action, explained
from penstock.errors import (
    DefiniteError,
    HistoryExpiredError,
    InternalError,
    LogCorruptError,
    TableError,
    TransientError,
)
from penstock.unexpected_errors import exception_in_output, origin, trace, unexpected
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


def test_report_has_type_and_location_but_no_value() -> None:
    error = raised(4711)
    assert origin(error).startswith(f"{type(error).__name__} at penstock.units:")
    reported = unexpected("reading", error, "Then do this.")
    assert isinstance(reported, InternalError)
    assert reported.message.startswith("reading hit an unexpected ")
    assert "please report it" in reported.hint and reported.hint.endswith("Then do this.")
    assert "in parse_size" in trace(error)
    assert "4711" not in reported.message + reported.hint + trace(error)


def test_causes_are_in_the_trace() -> None:
    try:
        try:
            raise ValueError("a secret")
        except ValueError as inner:
            raise KeyError("another") from inner
    except KeyError as error:
        text = trace(error)
    assert "KeyError" in text and "caused by ValueError" in text
    assert "secret" not in text and "another" not in text


def test_exception_that_was_never_raised_has_no_location() -> None:
    assert origin(ValueError("x")) == "ValueError"


def test_exception_is_found_in_the_output_of_a_spark_worker() -> None:
    assert exception_in_output(WORKER) == "OverflowError at penstock.tables.parquet_files:135"
    assert exception_in_output("nothing of the kind") is None
    interrupted = TransientError("the copy broke off: 42")
    interrupted.__cause__ = PythonException(WORKER)
    found = explained("copying public.t", interrupted)
    assert found.message == "copying public.t hit an unexpected OverflowError at penstock.tables.parquet_files:135"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("java.io.IOException: No space left on device", "java.io.IOException: No space left on device"),
        ("java.lang.IllegalArgumentException: the value 42", "java.lang.IllegalArgumentException"),
    ],
)
def test_java_errors(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    error = Py4JJavaError.__new__(Py4JJavaError)
    monkeypatch.setattr("penstock.engine.error_policy.brief", lambda _: text)
    assert explained("applying t", error).message == f"applying t hit an unexpected {shown}"


def spark_failure() -> TransientError:
    error = TransientError("applying broke off")
    error.__cause__ = PySparkException("x")
    return error


@pytest.mark.parametrize(
    ("error", "of_table", "outside"),
    [
        (TableError("public.t", 7, "x"), ErrorAction.END_TABLE, ErrorAction.END_SOURCE),
        (HistoryExpiredError("x"), ErrorAction.END_TABLE, ErrorAction.END_SOURCE),
        (LogCorruptError("x"), ErrorAction.END_SOURCE, ErrorAction.END_SOURCE),
        (DefiniteError("x"), ErrorAction.LIMITED, ErrorAction.END_SOURCE),
        (TransientError("x"), ErrorAction.RETRY, ErrorAction.RETRY),
        (spark_failure(), ErrorAction.LIMITED, ErrorAction.LIMITED),
        (PySparkException("x"), ErrorAction.LIMITED, ErrorAction.LIMITED),
        (ValueError("x"), ErrorAction.LIMITED, ErrorAction.LIMITED),
        (SystemExit(), ErrorAction.END_SOURCE, ErrorAction.END_SOURCE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_actions(error: BaseException, of_table: ErrorAction, outside: ErrorAction) -> None:
    assert (error_action(error, of_table=True), error_action(error, of_table=False)) == (of_table, outside)
