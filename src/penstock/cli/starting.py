"""What every command shows while it starts: what is being waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console

from penstock.control.home import start_session

__all__ = ["start_spark", "waiting"]


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
