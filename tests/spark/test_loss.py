"""Whether an error means that Spark is gone: decided by the JVM, whatever the error is. No Spark is needed for that."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError

from penstock.cli.main import _known
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.spark import loss
from penstock.spark.loss import lost


@dataclass
class Process:
    """A JVM that ends after it was asked for a few times; None: never."""

    lives: int | None
    asked: int = 0

    def poll(self) -> int | None:
        self.asked += 1
        return None if self.lives is None or self.asked <= self.lives else -9


@dataclass
class Gateway:
    proc: Process | None
    jvm: Any = None


@dataclass
class Jvm:
    """A JVM that somebody else has started: it answers, or not."""

    answers: bool
    System: Any = field(init=False)

    def __post_init__(self) -> None:
        self.System = self

    def nanoTime(self) -> int:
        if not self.answers:
            raise ConnectionRefusedError
        return 1


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """An error of Java's, whose text is at hand."""

    def __init__(self, said: str) -> None:
        self.said = said

    def __str__(self) -> str:
        if not self.said:
            raise Py4JNetworkError("no answer")
        return self.said


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(loss, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(loss, "_LAST_BREATH_SECONDS", 0.05)

    def use(gateway: Gateway | None) -> None:
        monkeypatch.setattr(SparkContext, "_gateway", gateway)

    return use


def behind(error: Exception, cause: BaseException) -> Exception:
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
    behind(TransientError("applying t broke off"), Py4JNetworkError("x")),
    behind(DefiniteError("the query failed"), EOFError()),
]
OTHERS = [AttributeError("'NoneType' object has no attribute 'sc'"), TypeError("'JavaPackage' object is not callable")]


def name(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", BROKEN, ids=name)
def test_a_connection_breaks_a_moment_before_the_process_has_ended(jvm: Callable[..., Any], error: Exception) -> None:
    jvm(Gateway(Process(lives=5)))
    assert lost(error)
    known = _known(error)
    assert (known.exit_code, "Start again; nothing is lost" in known.hint) == (4, True)


@pytest.mark.parametrize("error", OTHERS, ids=name)
def test_after_that_anything_may_come(jvm: Callable[..., Any], error: Exception) -> None:
    jvm(Gateway(Process(lives=0)))
    assert _known(error).exit_code == 4


@pytest.mark.parametrize("error", [*BROKEN, *OTHERS, JavaError("java.io.IOException: no space")], ids=name)
def test_a_jvm_that_lives_is_not_lost(jvm: Callable[..., Any], error: Exception) -> None:
    jvm(Gateway(Process(lives=None)))
    assert not lost(error)


def test_who_has_answered_is_not_waited_for(jvm: Callable[..., Any]) -> None:
    process = Process(lives=None)
    jvm(Gateway(process))
    for error in (JavaError("java.io.IOException: no space"), PySparkException("no"), FileNotFoundError(2, "gone")):
        process.asked = 0
        assert not lost(error)
        assert process.asked == 1


def test_errors_of_ours_stay_what_they_are(jvm: Callable[..., Any]) -> None:
    """A wrong statement is one, also if the JVM has died meanwhile."""
    jvm(Gateway(Process(lives=0)))
    for error in (UsageError("wrong"), DefiniteError("no")):
        assert _known(error) is error


@pytest.mark.parametrize("answers", [True, False])
def test_a_jvm_that_somebody_else_has_started_is_called(jvm: Callable[..., Any], answers: bool) -> None:
    jvm(Gateway(None, Jvm(answers)))
    assert lost(Py4JNetworkError("x")) is not answers


def test_without_spark_nothing_is_lost(jvm: Callable[..., Any]) -> None:
    jvm(None)
    for error in BROKEN:
        assert not lost(error)


def test_a_jvm_that_ends_while_it_starts(jvm: Callable[..., Any]) -> None:
    jvm(None)
    assert _known(PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})).exit_code == 4
