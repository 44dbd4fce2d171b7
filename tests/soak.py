"""Soak: ``penstock run`` under load for minutes or hours, while its memory, files, threads and disk are measured.

::

    python -m tests.soak --minutes 30 --connect

    load ─▶ Postgres ─▶ penstock run ◀── queries, status page and metrics, from several clients
                             │
            every second: memory, open files, threads and connections of each process; sizes of log and tables

The first third of the time is the start: caches fill, code is compiled, history reaches the age at which it is removed.
What is measured after it must stay flat: files, threads and connections must not rise. The medians of the thirds and
the slopes of the last two are printed, with the share of the last one that a straight line explains: what fills up once
has a smaller slope in the last third. The log is bounded by ``--retain-history``, here half a minute, and by the views
of Spark Connect, which retain what they need for ten minutes. With ``--connect``, a client of Spark Connect queries
too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from penstock.demo.load import Load
from penstock.demo.scenario import create_bank
from penstock.demo.shop import create_shop
from penstock.embedded.postgres import start_postgres
from penstock.home import open_existing
from penstock.layout import connect_token_path, lake_path, log_path
from penstock.server.address import running_server
from penstock.testing.waiting import PATIENCE, until
from tests.server.clients import over_unix
from tests.spark.connect_packages import free_port, install_client

__all__ = ["Series", "Soak", "soak"]

SOURCE = "soak"
RATE = 40.0
RETAINED = "30 seconds"
LOOK_SECONDS = 1.0
QUERY_SECONDS = 5.0
QUERY = "SELECT count(*) AS accounts, sum(balance) AS balance FROM soak.accounts"
MEGABYTE = 1024 * 1024
CONNECT_CLIENT = """
import sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(f"sc://localhost:{sys.argv[1]}/;token={sys.argv[2]}").getOrCreate()
while True:
    print(*spark.sql(sys.argv[3]).collect()[0], flush=True)
    time.sleep(float(sys.argv[4]))
"""


@dataclass
class Series:
    """Measurements of one quantity: seconds since the start, and values."""

    unit: str
    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def settled(self) -> Series:
        """Return the part after the first third of the time."""
        return self.between(1 / 3, 1)

    def between(self, begin: float, end: float) -> Series:
        """Return the part between two fractions of the time."""
        first, seconds = self.at[0], self.at[-1] - self.at[0]
        found = zip(self.at, self.values, strict=True)
        kept = [(at, value) for at, value in found if begin <= (at - first) / (seconds or 1) <= end]
        return Series(self.unit, *(list(column) for column in zip(*kept, strict=True)))

    def slope(self) -> tuple[float, float]:
        """Return the increase per hour along the best straight line, and the share of the variance it explains."""
        if len(set(self.values)) < 2:
            return 0.0, 0.0
        line = statistics.linear_regression(self.at, self.values)
        return line.slope * 3600, statistics.correlation(self.at, self.values) ** 2

    def halves(self) -> tuple[float, float]:
        """Return the medians of the first and of the second half."""
        middle = len(self.values) // 2
        return statistics.median(self.values[:middle]), statistics.median(self.values[middle:])


@dataclass
class Soak:
    """What was measured, by process and quantity; and what clients did meanwhile."""

    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    transactions: int = 0
    queries: int = 0
    connect_queries: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, at: float, who: str, what: str, unit: str, value: float) -> None:
        series = self.series.setdefault((who, what), Series(unit))
        series.at.append(at)
        series.values.append(value)

    def report(self) -> Iterator[str]:
        """Yield a line for each quantity."""
        asked = f"{self.queries} queries, {self.connect_queries} through Spark Connect"
        yield f"{self.transactions:,} transactions, {asked}, {len(self.errors)} errors"
        yield f"{'':12}{'':16}{'medians of thirds':>30}{'last':>10}{'per hour, second and last':>28}{'line':>7}"
        for (who, what), series in sorted(self.series.items()):
            thirds = [series.between(third / 3, (third + 1) / 3) for third in range(3)]
            (earlier, _), (slope, line) = (third.slope() for third in thirds[1:])
            numbers = (*(statistics.median(third.values) for third in thirds), series.values[-1])
            shown = "".join(f"{number:10,.1f}" for number in numbers)
            yield f"{who:12}{f'{what} {series.unit}':16}{shown}{earlier:+14,.1f}{slope:+14,.1f}{line:7.2f}"


def soak(minutes: float, folder: Path, packages: Path | None = None) -> Soak:
    """Run Penstock under load for some minutes; return what was measured.

    With the `packages` of Spark Connect, a client queries through it.
    """
    measured = Soak()
    port = free_port() if packages else None
    with start_postgres() as postgres:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            create_shop(connection, customers=500)
            create_bank(connection, accounts=100)
        with _running(postgres.url, folder / "home", port) as process, _connected(folder, port, packages, measured):
            load = Load(postgres.url, RATE).start()
            stopping = threading.Event()
            clients = threading.Thread(target=_ask, args=(folder / "home", measured, stopping))
            clients.start()
            try:
                _measure(minutes, process, folder / "home", measured)
            finally:
                stopping.set()
                clients.join()
                load.stop()
            measured.transactions = load.transactions
    return measured


@contextmanager
def _connected(folder: Path, port: int | None, packages: Path | None, measured: Soak) -> Iterator[None]:
    """Run a client of Spark Connect, if there are packages for it; count its queries."""
    if port is None or packages is None:
        yield
        return
    token = connect_token_path(folder / "home").read_text(encoding="ascii").strip()
    command = [sys.executable, "-c", CONNECT_CLIENT, str(port), token, QUERY, str(QUERY_SECONDS)]
    answers, failures = folder / "connect.out", folder / "connect.err"
    with answers.open("wb") as out, failures.open("wb") as error:
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        client = subprocess.Popen(command, env=environment, stdout=out, stderr=error)
    try:
        yield
    finally:
        if client.poll() is not None:
            measured.errors.append(f"Spark Connect: {failures.read_text()[-300:]}")
        client.kill()
        client.wait(PATIENCE)
        measured.connect_queries = len(answers.read_text().splitlines())


@contextmanager
def _running(url: str, home: Path, connect: int | None) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "penstock.cli", "run", url, "--home", str(home), "--name", SOURCE]
    if connect is not None:
        command += ["--connect", f"--connect-address=127.0.0.1:{connect}"]
    output = home.with_suffix(".out")
    with output.open("wb") as out:
        process = subprocess.Popen([*command, "--retain-history", RETAINED], stdout=out, stderr=out)
    try:
        until(lambda: _has_copied(process, output, home), "all tables to be copied")
        yield psutil.Process(process.pid)
        assert process.poll() is None, output.read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _has_copied(process: subprocess.Popen[bytes], output: Path, home: Path) -> bool:
    assert process.poll() is None, output.read_text()
    if running_server(home) is None:
        return False
    tables = [table for source in open_existing(home).status().sources for table in source.tables]
    return bool(tables) and all(table.state == "live" for table in tables)


def _measure(minutes: float, process: psutil.Process, home: Path, measured: Soak) -> None:
    began = time.monotonic()
    while (at := time.monotonic() - began) < 60 * minutes:
        for who, each in _by_role(process).items():
            _measure_processes(at, who, each, measured)
        measured.add(at, "home", "log", "MB", _size(log_path(home, SOURCE)) / MEGABYTE)
        measured.add(at, "home", "tables", "MB", _size(lake_path(home, SOURCE)) / MEGABYTE)
        time.sleep(LOOK_SECONDS)


def _by_role(process: psutil.Process) -> dict[str, list[psutil.Process]]:
    """Return the processes of a running home, by what they do."""
    found: dict[str, list[psutil.Process]] = defaultdict(list)
    found["run"].append(process)
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if "penstock.engine.capture_process" in command:
                found["capture"].append(child)
            elif "SparkSubmit" in command:
                found["JVM"].append(child)
            elif "pyspark" in command:
                found["workers"].append(child)
    return found


def _measure_processes(at: float, who: str, processes: Sequence[psutil.Process], measured: Soak) -> None:
    memory, files, threads, connections = 0.0, 0, 0, 0
    for process in processes:
        with suppress(psutil.Error), process.oneshot():
            memory += process.memory_info().rss / MEGABYTE
            files += process.num_fds()
            threads += process.num_threads()
            connections += len(process.net_connections("tcp"))
    measured.add(at, who, "memory", "MB", memory)
    for what, number in (("files", files), ("threads", threads), ("connections", connections)):
        measured.add(at, who, what, "", number)


def _size(path: Path) -> int:
    """Return the bytes of a file with its companions, or of a folder."""
    found = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.name}*")
    total = 0
    for each in found:
        with suppress(OSError):
            total += each.stat().st_size if each.is_file() else 0
    return total


def _ask(home: Path, measured: Soak, stopping: threading.Event) -> None:
    """Query a live table, and read status and metrics, as users, browsers and Prometheus do."""
    server = running_server(home)
    assert server is not None
    with over_unix(server) as client:
        while not stopping.wait(QUERY_SECONDS):
            query = client.build_request("POST", "/api/sql", json={"sql": QUERY, "read_only": True})
            for request in (client.build_request("GET", "/metrics"), client.build_request("GET", "/api/status"), query):
                answer = client.send(request)
                if answer.status_code != 200 or (request is query and '"done"' not in answer.text):
                    measured.errors.append(f"{request.url.path}: {answer.status_code} {answer.text[:300]}")
            measured.queries += 1


def main() -> None:
    """Soak, and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Run Penstock under load and measure it.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--connect", action="store_true", help="also query through Spark Connect")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as folder:
        packages = install_client(Path(folder) / "packages") if given.connect else None
        measured = soak(given.minutes, Path(folder), packages)
    for line in measured.report():
        print(line)
    for error in measured.errors[:10]:
        print(error)


if __name__ == "__main__":
    main()
