"""What every command shows while it starts: what is being waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from rich.console import Console

from penstock.control.home import start_session

__all__ = ["start_spark", "stop_spark", "waiting"]


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show a spinner, on stderr, while something takes its time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(message):
        yield


def start_spark() -> SparkSession:
    """Start Spark; the first time on a machine, its jars are fetched."""
    with waiting("starting Spark"):
        return start_session(lambda text: Console(stderr=True).print(text))


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark; one that has died already is as good as stopped."""
    with suppress(Py4JError, OSError, EOFError):
        spark.stop()
