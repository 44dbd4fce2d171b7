"""What Penstock costs the database: transactions per second of a pgbench beside capture and snapshots.

pgbench runs its standard transactions with two clients for some seconds, in turns:

::

    alone      nothing else                                                                  the reference
    capture    WAL is decoded and sent, and written to the log of a home
    snapshot   a table is read at the same time, by two sessions, as fast as possible: all rows, decoded and discarded
    limited    the same with snapshot sessions = 1 and snapshot rate = '20 MB'

Everything shares the cores of this machine: capture and the readers take CPU time that they would not take from a
server of its own, so a ratio is a lower bound. Spark is not part of it. The ratio is that of capture.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.rounds import Spread, print_environment, print_table, size
from penstock.embedded.postgres import EmbeddedPostgres, binaries, start_postgres
from penstock.engine.source_runner import CaptureSupervisor
from penstock.home import Home
from penstock.sources.database import Tally
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["run"]

_LARGE = "CREATE TABLE large AS SELECT n AS id, md5(n::text) AS a, repeat('x', 200) AS b FROM generate_series(1, {}) n"
_KEY = "ALTER TABLE large ADD PRIMARY KEY (id)"
_RATE = re.compile(r"^tps = ([0-9.]+) ", re.MULTILINE)
_CLIENTS = "2"
_SESSIONS = 2
_LIMITED = {"snapshot_sessions": 1, "snapshot_rate": "20 MB"}
_ROWS_PER_SECOND = 50_000
"""How long pgbench runs follows from the size, so that a test is short."""


def run(quick: bool) -> float:
    """Measure, print, and return the transactions per second beside capture, divided by those alone."""
    rows, rounds = size(500_000 if quick else 2_000_000, 3 if quick else 5)
    seconds = max(1, rows // _ROWS_PER_SECOND)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, start_postgres() as postgres:
        print_environment(postgres)
        _pgbench(postgres, "--initialize", "--scale", "10", "--quiet")
        postgres.execute(_LARGE.format(rows))
        postgres.execute(_KEY)
        home = Home(Path(folder) / "home")
        home.create(postgres.url, "bench", tables=("public.pgbench_accounts", "public.pgbench_tellers"))
        beside: dict[str, Callable[[], Any]] = {
            "alone": ExitStack,
            "capture": lambda: _capture(home),
            "snapshot": lambda: _copies(postgres, {}),
            "snapshot, limited": lambda: _copies(postgres, _LIMITED),
        }
        rates: dict[str, list[float]] = {name: [] for name in beside}
        for _ in range(rounds):
            for name, start in beside.items():
                with start():
                    rates[name].append(_transactions_per_second(postgres, seconds))
    return _printed(rates, rounds)


def _printed(rates: dict[str, list[float]], rounds: int) -> float:
    ratios = {
        name: Spread.of([rate / alone for rate, alone in zip(found, rates["alone"], strict=True)])
        for name, found in rates.items()
    }
    rows = [[name, Spread.of(found).show(",.0f"), ratios[name].show(".2f")] for name, found in rates.items()]
    print_table(f"{rounds} rounds; min / median / max", ("beside", "transactions/s", "relative to alone"), rows)
    return ratios["capture"].median


def _transactions_per_second(postgres: EmbeddedPostgres, seconds: int) -> float:
    printed = _pgbench(postgres, "--client", _CLIENTS, "--time", str(seconds), "--no-vacuum")
    found = _RATE.search(printed)
    assert found is not None, printed
    return float(found[1])


def _pgbench(postgres: EmbeddedPostgres, *options: str) -> str:
    command = [str(binaries() / "pgbench"), *options, postgres.url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def _capture(home: Home) -> Iterator[None]:
    capture = CaptureSupervisor(home.path, "bench")
    try:
        yield
    finally:
        capture.stop()


@contextmanager
def _copies(postgres: EmbeddedPostgres, options: dict[str, Any]) -> Iterator[None]:
    """Read the large table again and again, until the end of the block."""
    source = PostgresSource.from_url(postgres.url, "copies", tables=("public.large",), **options)
    (instance,) = source.create_instances(1)
    stop = threading.Event()
    with source.database(instance).snapshot(print, stop) as snapshot:
        copy = snapshot.copy(instance.tables[0], _SESSIONS)
        threads = [threading.Thread(target=_read, args=(copy, each, stop)) for each in range(copy.sessions())]
        threads = threads[:_SESSIONS]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _read(copy: Any, number: int, stop: threading.Event) -> None:
    while not stop.is_set():
        for _ in copy.read(number % copy.ranges, Tally()):
            if stop.is_set():
                return
