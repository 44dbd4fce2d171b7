"""Latency from a commit in Postgres to a consumer of the sink's topic, at 50 transactions per second.

A writer commits one row at a time, at a constant rate. Another process runs the home: capture in its own process, apply
into tables in memory, and a sink with the envelope DEBEZIUM in JSON, exactly once. A consumer with
``isolation.level=read_committed`` polls the topic. Latency is measured from the commit time that Postgres reports,
which is in the message, to the return of that poll: with the flush of the WAL, the fsync of the log, the Kafka
transaction, and the fetch of the consumer. Both clocks are those of this machine.

Goal: p50 below 100 ms and p99 below 300 ms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench.rounds import print_environment, print_table
from penstock.embedded.postgres import start_postgres
from penstock.errors import TransientError
from penstock.home import Home
from penstock.testing.kafka import start_kafka
from penstock.testing.memory_tables import MemoryTables

__all__ = ["UNIT", "run"]

UNIT = "p99_ms"
_RATE = 50.0
_WARM_SECONDS = 10.0
_PATIENCE = 120.0
_TABLE = "CREATE TABLE event (id bigint PRIMARY KEY, name text NOT NULL, amount numeric(12,2), at timestamptz)"


def run(quick: bool) -> float:
    """Measure, print, and return the 99th percentile of the latency, in milliseconds."""
    seconds = float(os.environ.get("PENSTOCK_BENCH_SECONDS", 20 if quick else 120))
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        start_postgres() as server,
        start_kafka(Path(folder) / "kafka", session_seconds=30) as broker,
    ):
        print_environment(server)
        server.execute(_TABLE)
        home = Home(Path(folder) / "home")
        home.create(server.url, "bench")
        sink: dict[str, Any] = {
            "format": "json",
            "envelope": "debezium",
            "topic_prefix": "bench.",
            "partitions": 1,
            "snapshot": False,
        }
        home.create_sink("out", "bench", broker=broker.bootstrap, **sink)
        with _running(home.path), _writing(server.url):
            found = _latencies(broker.bootstrap, min(_WARM_SECONDS, seconds), seconds)
    p50, p95, p99, most = (float(np.percentile(found, p)) for p in (50, 95, 99, 100))
    shown = [["a consumer with read_committed", f"{len(found):,}", *(f"{p:.1f}" for p in (p50, p95, p99, most))]]
    print_table(f"{_RATE:.0f} tx/s for {seconds:.0f} s", ("commit to", "seen", "p50 ms", "p95", "p99", "max"), shown)
    return p99


def _latencies(bootstrap: str, warm: float, seconds: float) -> list[float]:
    """Consume the topic; return the latencies of rows committed after the warm-up, in milliseconds."""
    found: list[float] = []
    with closing(_reader(bootstrap)) as reader:
        began: float | None = None
        deadline = time.time() + _PATIENCE
        while time.time() < deadline:
            message = reader.poll(0.1)
            now = time.time()
            value = None if message is None or message.error() is not None else message.value()
            if value is None:
                continue
            if began is None:
                began, deadline = now + warm, now + warm + seconds + _PATIENCE
            committed = json.loads(value)["source"]["ts_us"] / 1e6
            if committed >= began + seconds:
                return found
            if committed >= began:
                found.append((now - committed) * 1000)
    missing = f"no change arrived within {_PATIENCE:.0f} s"
    raise TransientError(missing, "Check the logs of the servers, or use a faster machine.")


def _reader(bootstrap: str) -> Consumer:
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition("bench.public.event", 0, 0)])
    return reader


@contextmanager
def _running(home: Path) -> Iterator[None]:
    """Run a home in another process."""
    command = [sys.executable, "-m", "bench.sink_latency", str(home)]
    process = subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate()


@contextmanager
def _writing(url: str) -> Iterator[None]:
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(url, stop))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def _write(url: str, stop: threading.Event) -> None:
    """Commit rows at the constant rate."""
    with psycopg.connect(url, autocommit=True) as connection:
        began, number = time.monotonic(), 0
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO event VALUES (%s, 'some event', 12.34, now())", (number,))
            time.sleep(max(0.0, began + number / _RATE - time.monotonic()))


def _run_home(home: Path) -> None:
    """Run a home in this process, until standard input ends."""
    with Home(home).run(MemoryTables()):
        sys.stdin.read()


if __name__ == "__main__":
    _run_home(Path(sys.argv[1]))
