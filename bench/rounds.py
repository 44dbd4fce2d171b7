"""Alternate between subject and reference, and summarize their times."""

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

__all__ = [
    "Sample",
    "Spread",
    "alternate",
    "median_ratio",
    "print_environment",
    "print_table",
    "size",
    "timed",
    "warm_rounds",
]

_SIZE = "PENSTOCK_BENCH_ROWS"
_SETTINGS = ("server_version", "synchronous_commit", "fsync", "wal_sender_timeout")


@dataclass(frozen=True)
class Sample:
    """The time of one candidate in one round."""

    seconds: float
    cpu_seconds: float
    """CPU time of the client process, without the server."""


@dataclass(frozen=True)
class Spread:
    """The spread of a figure between rounds."""

    lowest: float
    median: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some figures."""
        return cls(min(values), statistics.median(values), max(values))

    def show(self, form: str) -> str:
        """Format as minimum, median and maximum."""
        return " / ".join(format(value, form) for value in (self.lowest, self.median, self.highest))


def size(rows: int, rounds: int) -> tuple[int, int]:
    """Return the number of rows and rounds: the given ones, unless PENSTOCK_BENCH_ROWS is set (by a test)."""
    wanted = os.environ.get(_SIZE)
    return (int(wanted), 1) if wanted else (rows, rounds)


def warm_rounds() -> int:
    """Return the number of rounds that are not counted: 1, or none if PENSTOCK_BENCH_ROWS is set (by a test)."""
    return 0 if os.environ.get(_SIZE) else 1


def timed(work: Callable[[], object]) -> Sample:
    """Run `work`; return its time and the CPU time of this process."""
    before, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - before, time.process_time() - cpu)


def alternate(candidates: Mapping[str, Callable[[int], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Run every candidate once per round, numbered from 1, with another candidate first in each round."""
    names = list(candidates)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(candidates[name](number))
    return samples


def median_ratio(reference: Sequence[Sample], subject: Sequence[Sample]) -> Spread:
    """Return the ratio of reference time to subject time in each round: above 1 if the subject is faster."""
    return Spread.of([r.seconds / s.seconds for r, s in zip(reference, subject, strict=True)])


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of figures; the first column is left-aligned."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=240).print(table)


def print_environment(server: EmbeddedPostgres) -> None:
    """Print the environment that the figures depend on."""
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
