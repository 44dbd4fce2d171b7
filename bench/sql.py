"""Queries through the running process, compared with a `penstock sql` that starts its own Spark.

The demo's database is captured by ``penstock run``, under the load of the demo. Measured over the Unix socket of that
process: the time until the first row of an aggregate over a live table and of a point query, and until the answer to
SHOW SOURCES; then the duration of whole commands, from the start of Python to their end. Then ``penstock run`` is
stopped, and the same ``penstock sql`` is measured, which starts Spark.

Goal: p50 until the first row of a query below 0.5 s; ``penstock status`` and ``penstock --help`` below 0.4 s.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.rounds import Spread, print_table
from penstock.cli.sql_sessions import RemoteSession
from penstock.demo.load import Load
from penstock.demo.scenario import DATABASE, start_database
from penstock.home import Home
from penstock.server.address import Address, running_server
from penstock.testing.waiting import until

__all__ = ["run"]

_PATIENCE = 300.0
_RATE = 50
_QUERIES = {
    "aggregate": f"SELECT status, count(*), sum(total) FROM {DATABASE}.orders GROUP BY status",
    "point query": f"SELECT * FROM {DATABASE}.orders WHERE id = 1234",
    "SHOW SOURCES": "SHOW SOURCES",
}


def run(quick: bool) -> float:
    """Measure, print, and return how many times longer a cold `penstock sql` takes than one that uses the process."""
    rounds, cold_rounds = (1, 1) if os.environ.get("PENSTOCK_BENCH_ROWS") else (10, 2) if quick else (50, 5)
    with start_database() as url, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder) / "home"
        command = ["sql", "--home", str(path), _QUERIES["aggregate"]]
        with _running(path, url) as server:
            load = Load(url, _RATE).start()
            try:
                answered = {name: _first_rows(server, query, rounds) for name, query in _QUERIES.items()}
                warm = _commands(command, rounds)
                status = _commands(["status", "--home", str(path)], rounds)
                usage = _commands(["--help"], rounds)
            finally:
                load.stop()
        cold = _commands(command, cold_rounds)
    rows = [[f"{name}, first row over the socket", *_shown(found)] for name, found in answered.items()]
    rows += [["penstock sql, aggregate", *_shown(warm)], ["penstock sql, aggregate, own Spark", *_shown(cold)]]
    rows += [["penstock status", *_shown(status)], ["penstock --help", *_shown(usage)]]
    print_table(f"demo, {_RATE} tx/s, {os.cpu_count()} cores", ("what", "runs", "s: min / median / max"), rows)
    return Spread.of(cold).median / Spread.of(warm).median


def _shown(found: Sequence[float]) -> list[str]:
    return [str(len(found)), Spread.of(found).show(".3f")]


@contextmanager
def _running(home: Path, url: str) -> Iterator[Address]:
    """Run ``penstock run`` until all tables are live; stop it at the end."""
    started = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "run", url, "--home", str(home), "--name", DATABASE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = until(lambda: running_server(home), "the server", _PATIENCE)
        assert server is not None
        until(lambda: _is_live(home), "live tables", _PATIENCE)
        yield server
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(_PATIENCE)


def _is_live(home: Path) -> bool:
    tables = [table for source in Home(home).status().sources for table in source.tables]
    return bool(tables) and all(table.state == "live" for table in tables)


def _first_rows(server: Address, query: str, rounds: int) -> list[float]:
    """Return the times until the first row, or the answer, after a few runs that are not counted."""
    times = [_timed(lambda: _first_row(server, query)) for _ in range(rounds + 3)]
    return times[3:]


def _first_row(server: Address, query: str) -> None:
    messages = RemoteSession(server).execute(query)
    next(itertools.dropwhile(lambda message: "columns" in message, messages))


def _commands(arguments: Sequence[str], rounds: int) -> list[float]:
    """Return the durations of a command."""
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    return [_timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True)) for _ in range(rounds)]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
