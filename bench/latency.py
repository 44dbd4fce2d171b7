"""Latency from a commit in Postgres to `foreachBatch` and to `home.tail()`, at 50 transactions per second.

A writer commits one row at a time, at a constant rate. Capture runs in a separate process, as in ``penstock run``.
Spark has two local cores, and a streaming query whose `foreachBatch` collects its rows. Latency is measured from the
commit time reported by Postgres to the call of that function, and also to the end of its `collect`. Then, without
Spark, another process reads the same load through `home.tail()`.

Both clocks are those of this machine. Postgres takes the commit time before it flushes its WAL: the flush is included.

The reference, in the same run and session, is the same `foreachBatch` over Spark's `rate` source, which reads nothing:
the duration of a micro-batch in Spark itself. On average a commit waits for half a micro-batch, then for its own.

Spark runs as started by `penstock.session`, with one additional setting, which is printed: see "For the lowest latency"
in the guide to reading changes.

Goal: p50 below 100 ms and p99 below 250 ms in Spark, p50 below 10 ms in `tail`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.rounds import print_environment, print_table
from penstock.catalog.store import Catalog
from penstock.embedded.postgres import start_postgres
from penstock.engine.source_runner import CaptureSupervisor
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.spark.session import session
from penstock.testing.waiting import until

__all__ = ["UNIT", "run"]

UNIT = "p50_ms"
_RATE = 50.0
_QUICK_CHECKPOINTS = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
"""Disables checksum files for local files: Hadoop starts a process (chmod) for each file that it creates."""
_WARM_SECONDS, _REFERENCE_SECONDS = 15.0, 10.0
_PATIENCE = 120.0
_TABLE = "CREATE TABLE event (id bigint PRIMARY KEY, name text NOT NULL, amount numeric(12,2), at timestamptz)"


@dataclass
class _Seen:
    """The commit time of each row, and when it was seen."""

    called: list[tuple[float, float]] = field(default_factory=list)
    collected: list[tuple[float, float]] = field(default_factory=list)


def run(quick: bool) -> float:
    """Measure, print, and return the median latency until `foreachBatch` is called, in milliseconds."""
    seconds = float(os.environ.get("PENSTOCK_BENCH_SECONDS", 20 if quick else 120))
    with start_postgres() as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        print_environment(server)
        print("Spark", ", ".join(f"{name}={value}" for name, value in _QUICK_CHECKPOINTS.items()))
        server.execute(_TABLE)
        home = Home(Path(folder) / "home")
        home.create(server.url, "bench")
        capture = CaptureSupervisor(home.path, "bench")
        try:
            _wait_for_the_table(home)
            found = _measure(home, server.url, Path(folder), min(_WARM_SECONDS, seconds), seconds)
        finally:
            capture.stop()
    called, collected, in_tail, *batches = found
    shown = [
        _row("foreachBatch is called (Spark, 2 cores)", called),
        _row("foreachBatch has collected the rows", collected),
        _row("home.tail() has returned the rows", in_tail),
    ]
    print_table(f"{_RATE:.0f} tx/s for {seconds:.0f} s", ("commit to", "seen", "p50 ms", "p95", "p99", "max"), shown)
    own, floor = map(np.median, batches)
    print(f"a micro-batch: {own:.0f} ms, {own / floor:.2f} times that of Spark's rate source ({floor:.0f} ms)")
    return float(np.median(called))


def _wait_for_the_table(home: Home) -> None:
    """Wait until capture has defined the table in the log."""
    with closing(Catalog(catalog_path(home.path)).log("bench").reader()) as reader:
        until(reader.tables, "the table in the log", _PATIENCE)


def _row(name: str, found: list[float]) -> list[str]:
    return [name, f"{len(found):,}", *(f"{np.percentile(found, p):.1f}" for p in (50, 95, 99, 100))]


def _measure(home: Home, url: str, folder: Path, warm: float, seconds: float) -> tuple[list[float], ...]:
    """Write at a constant rate; return the latencies after the warm-up, and the durations of micro-batches.

    All in milliseconds: until `foreachBatch` is called, until it has collected the rows, and, without Spark, until
    `tail` returns them; then the micro-batches of Penstock and of the reference.
    """
    spark = session("bench", master="local[2]", config=_QUICK_CHECKPOINTS)
    seen = _Seen()
    rows = spark.readStream.format("penstock").options(home=str(home.path), source="bench", table="public.event").load()
    query = _started(rows, folder / "checkpoint", seen)
    with _writing(url, 0):
        began, ended = _timed(lambda: seen.collected, warm, seconds)
    own = _batches(query)
    floor = _reference(spark, folder / "reference", min(_REFERENCE_SECONDS, seconds))
    spark.stop()
    in_spark = (_latencies(found, began, ended) for found in (seen.called, seen.collected))
    return *in_spark, _tailed(home, url, folder / "tailed", seconds / 4), own, floor


def _tailed(home: Home, url: str, output: Path, seconds: float) -> list[float]:
    """Let another process tail the log, under the same load."""
    with output.open("wb") as lines:
        tail = subprocess.Popen([sys.executable, "-m", "bench.latency", str(home.path)], stdout=lines)

    def seen() -> list[tuple[float, float]]:
        whole, _, _ = output.read_text().rpartition("\n")
        return [(committed, now) for committed, now in map(json.loads, whole.splitlines())]

    with _writing(url, 1_000_000):
        began, ended = _timed(seen, 1.0, seconds)
    tail.terminate()
    tail.wait()
    return _latencies(seen(), began, ended)


def _timed(seen: Callable[[], list[tuple[float, float]]], warm: float, seconds: float) -> tuple[float, float]:
    """Wait for the first rows, warm up, measure for `seconds`, and wait until all rows were seen."""
    _wait_for(seen, time.time())
    time.sleep(warm)
    began = time.time()
    time.sleep(seconds)
    ended = time.time()
    _wait_for(seen, ended)
    return began, ended


def _wait_for(seen: Callable[[], list[tuple[float, float]]], moment: float) -> None:
    """Wait for a row that was committed at `moment` or later."""
    until = time.monotonic() + _PATIENCE
    while not any(committed >= moment for committed, _ in seen()[-1000:]):
        if time.monotonic() > until:
            raise TimeoutError(f"no committed row was seen for {_PATIENCE:.0f} s: is capture running?")
        time.sleep(0.2)


@contextmanager
def _writing(url: str, first: int) -> Iterator[None]:
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(url, first, stop))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def _started(rows: DataFrame, checkpoint: Path, seen: _Seen) -> StreamingQuery:
    stream = rows.writeStream.foreachBatch(lambda batch, _: _record(batch, seen))
    return stream.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()


def _reference(spark: SparkSession, checkpoint: Path, seconds: float) -> list[float]:
    """Run Spark's rate source for `seconds`, or until it had rows; return the durations of its micro-batches."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", "1000").load()
    query = _started(rows.selectExpr("timestamp AS _committed_at", "value"), checkpoint, _Seen())
    until = time.monotonic() + _PATIENCE
    time.sleep(seconds)
    while not any(progress["numInputRows"] for progress in query.recentProgress) and time.monotonic() < until:
        time.sleep(0.2)
    return _batches(query)


def _batches(query: StreamingQuery) -> list[float]:
    """Stop a query; return the durations of its last micro-batches with rows."""
    query.stop()
    found = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    return found[-50:]


def _latencies(seen: list[tuple[float, float]], began: float, ended: float) -> list[float]:
    return [(now - committed) * 1000 for committed, now in seen if began <= committed < ended]


def _record(batch: Any, seen: _Seen) -> None:
    called = time.time()
    found = batch.collect()
    now = time.time()
    for row in found:
        committed = row["_committed_at"].timestamp()
        seen.called.append((committed, called))
        seen.collected.append((committed, now))


def _write(url: str, first: int, stop: threading.Event) -> None:
    """Commit rows at the constant rate."""
    with psycopg.connect(url, autocommit=True) as connection:
        began, number = time.monotonic(), 0
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO event VALUES (%s, 'some event', 12.34, now())", (first + number,))
            time.sleep(max(0.0, began + number / _RATE - time.monotonic()))


def _tail(home: Path) -> None:
    """Print the commit time of each transaction, and the time at which it was seen here."""
    for transaction in Home(home).tail("bench"):
        now = datetime.now(UTC).timestamp()
        sys.stdout.write(json.dumps([transaction.committed_at.timestamp(), now]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _tail(Path(sys.argv[1]))
