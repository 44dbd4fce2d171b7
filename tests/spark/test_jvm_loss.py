"""Detection of a lost JVM: the state of the JVM decides, whatever the error. These tests need no Spark."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError

from penstock.cli.main import _as_penstock_error
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.spark import jvm_loss
from penstock.spark.jvm_loss import is_spark_lost
from penstock.testing.waiting import PATIENCE


@dataclass
class Process:
    """A JVM process that exits after `lives` polls; None: never."""

    lives: int | None
    polls: int = 0

    def poll(self) -> int | None:
        self.polls += 1
        return None if self.lives is None or self.polls <= self.lives else -9


@dataclass
class Gateway:
    proc: Process | None
    jvm: Any = None


@dataclass
class Jvm:
    """A JVM started by another process: it answers, or not."""

    answers: bool
    System: Any = field(init=False)

    def __post_init__(self) -> None:
        self.System = self

    def nanoTime(self) -> int:
        if not self.answers:
            raise ConnectionRefusedError
        return 1


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """A Java error with a known text; without a text, reading it fails."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        if not self.text:
            raise Py4JNetworkError("no answer")
        return self.text


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(jvm_loss, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(jvm_loss, "_EXIT_SECONDS", 0.05)

    def use(gateway: Gateway | None) -> None:
        monkeypatch.setattr(SparkContext, "_gateway", gateway)

    return use


def caused_by(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


BROKEN = [
    Py4JNetworkError("Answer from Java side is empty"),
    Py4JError("An error occurred while calling o1.x"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    BrokenPipeError(errno.EPIPE, "Broken pipe"),
    OSError(errno.EBADF, "Bad file descriptor"),
    EOFError(),
    JavaError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."),
    JavaError(""),
    PySparkException("Job 3 cancelled because SparkContext was shut down"),
    caused_by(TransientError("applying t broke off"), Py4JNetworkError("x")),
    caused_by(DefiniteError("the query failed"), EOFError()),
]
OTHERS = [AttributeError("'NoneType' object has no attribute 'sc'"), TypeError("'JavaPackage' object is not callable")]


def name(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", BROKEN, ids=name)
def test_connection_error_shortly_before_the_process_exits_is_a_loss(
    jvm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(jvm_loss, "_EXIT_SECONDS", PATIENCE)
    jvm(Gateway(Process(lives=5)))
    assert is_spark_lost(error)
    known = _as_penstock_error(error)
    assert (known.exit_code, "No data is lost" in known.hint) == (4, True)


@pytest.mark.parametrize("error", OTHERS, ids=name)
def test_any_error_after_the_exit_is_a_loss(jvm: Callable[..., Any], error: Exception) -> None:
    jvm(Gateway(Process(lives=0)))
    assert _as_penstock_error(error).exit_code == 4


@pytest.mark.parametrize("error", [*BROKEN, *OTHERS, JavaError("java.io.IOException: no space")], ids=name)
def test_running_jvm_is_not_lost(jvm: Callable[..., Any], error: Exception) -> None:
    jvm(Gateway(Process(lives=None)))
    assert not is_spark_lost(error)


def test_answer_of_the_jvm_ends_the_check_without_waiting(jvm: Callable[..., Any]) -> None:
    process = Process(lives=None)
    jvm(Gateway(process))
    for error in (JavaError("java.io.IOException: no space"), PySparkException("no"), FileNotFoundError(2, "gone")):
        process.polls = 0
        assert not is_spark_lost(error)
        assert process.polls == 1


def test_penstock_errors_are_not_replaced(jvm: Callable[..., Any]) -> None:
    """An invalid statement is reported as such, even if the JVM died in the meantime."""
    jvm(Gateway(Process(lives=0)))
    for error in (UsageError("wrong"), DefiniteError("no")):
        assert _as_penstock_error(error) is error


@pytest.mark.parametrize("answers", [True, False])
def test_jvm_started_by_another_process_is_called(jvm: Callable[..., Any], answers: bool) -> None:
    jvm(Gateway(None, Jvm(answers)))
    assert is_spark_lost(Py4JNetworkError("x")) is not answers


def test_without_spark_no_loss_is_reported(jvm: Callable[..., Any]) -> None:
    jvm(None)
    for error in BROKEN:
        assert not is_spark_lost(error)


def test_jvm_exit_during_startup(jvm: Callable[..., Any]) -> None:
    jvm(None)
    error = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    assert _as_penstock_error(error).exit_code == 4
