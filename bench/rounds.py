"""Subject and reference in turns, and how far their times spread."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from penstock.embedded.postgres import EmbeddedPostgres

__all__ = ["Sample", "Spread", "alternate", "median_ratio", "print_environment", "print_table", "size", "timed"]

_SIZE = "PENSTOCK_BENCH_ROWS"
_SETTINGS = ("server_version", "synchronous_commit", "fsync", "wal_sender_timeout")


@dataclass(frozen=True)
class Sample:
    """What one contestant took in one round."""

    seconds: float
    cpu_seconds: float
    """Of the contestant's own process, without the server's."""


@dataclass(frozen=True)
class Spread:
    """How far a figure differs between rounds."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Describe some figures."""
        return cls(min(values), statistics.median(values), max(values))

    def show(self, form: str) -> str:
        """Write it as least, median and most."""
        return " / ".join(format(value, form) for value in (self.least, self.median, self.most))


def size(rows: int, rounds: int) -> tuple[int, int]:
    """Return how many rows and rounds to use: these, unless a test asks for a glimpse by the environment."""
    wanted = os.environ.get(_SIZE)
    return (int(wanted), 1) if wanted else (rows, rounds)


def timed(work: Callable[[], object]) -> Sample:
    """Do it, and take the time and this process's CPU time."""
    before, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - before, time.process_time() - cpu)


def alternate(contestants: Mapping[str, Callable[[int], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Run every contestant once a round, numbered from 1, each round beginning with another one."""
    names = list(contestants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(contestants[name](number))
    return samples


def median_ratio(reference: Sequence[Sample], subject: Sequence[Sample]) -> Spread:
    """Return reference time over subject time of the same round: above 1 where the subject is faster."""
    return Spread.of([r.seconds / s.seconds for r, s in zip(reference, subject, strict=True)])


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print figures; the first column names them."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


def print_environment(server: EmbeddedPostgres) -> None:
    """Print what the figures depend on."""
    settings = {name: server.execute(f"SHOW {name}")[0][0] for name in _SETTINGS}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    print("Postgres", ", ".join(f"{name}={value}" for name, value in settings.items()))
    print(f"fsync of 64 KB on the disk of the log: {Spread.of(_fsync_milliseconds()).show('.2f')} ms")


def _fsync_milliseconds() -> list[float]:
    taken = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(30):
            before = time.perf_counter()
            file.write(b"\0" * 65536)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - before) * 1000)
    return taken
