"""Start and stop Spark, with a spinner while the user waits. Spark is imported when it is started, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_when_needed", "start_spark", "stop_spark", "waiting"]


@contextmanager
def waiting(message: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with a message on stderr; the yielded function changes the message."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(message) as status:
        yield lambda text: status.update(escape(text))


def start_spark() -> SparkSession:
    """Start Spark; the first start on a machine downloads its jars."""
    from penstock.home_operations import start_session

    with waiting("starting Spark"):
        return start_session(lambda text: Console(stderr=True).print(text))


@contextmanager
def spark_when_needed() -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts Spark on its first call and returns that session; stop Spark at the end."""
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
    """Stop Spark; ignore the error if its JVM has already died."""
    from penstock.engine.error_policy import is_lost

    try:
        spark.stop()
    except Exception as error:
        if not is_lost(error):
            raise
