"""What every command shows while it starts: what is being waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape

from penstock.engine.error_policy import is_lost
from penstock.home import start_session

__all__ = ["spark_when_needed", "start_spark", "stop_spark", "waiting"]


@contextmanager
def waiting(message: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner, on stderr, while something takes its time; what is given may say what that is by now."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(message) as status:
        yield lambda text: status.update(escape(text))


def start_spark() -> SparkSession:
    """Start Spark; the first time on a machine, its jars are fetched."""
    with waiting("starting Spark"):
        return start_session(lambda text: Console(stderr=True).print(text))


@contextmanager
def spark_when_needed() -> Iterator[Callable[[], SparkSession]]:
    """Give what starts Spark when it is first called, and always returns the same session; stop it in the end."""
    started: list[SparkSession] = []

    def needed() -> SparkSession:
        if not started:
            started.append(start_spark())
        return started[0]

    try:
        yield needed
    finally:
        for spark in started:
            stop_spark(spark)


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark; one that has died already is as good as stopped."""
    try:
        spark.stop()
    except Exception as error:
        if not is_lost(error):
            raise
