"""Feedback to the server while capture is slow, and while no captured table changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.positions import Lsn
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text)"
TIMEOUT_SECONDS = 4
DISK_SECONDS = 2.5 * TIMEOUT_SECONDS


@pytest.fixture
def short_timeout_server() -> Iterator[EmbeddedPostgres]:
    """A server that ends a stream after a few seconds without feedback."""
    with start_postgres(fsync=False, settings={"wal_sender_timeout": f"{TIMEOUT_SECONDS}s"}) as server:
        server.execute(ACCOUNTS)
        yield server


def sender(server: EmbeddedPostgres) -> int | None:
    """The pid of the walsender that streams to capture."""
    found: int | None = server.execute("SELECT active_pid FROM pg_replication_slots WHERE plugin = 'pgoutput'")[0][0]
    return found


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make the first publish of rows take longer than the timeout; return an event that is set when it has finished."""
    publish, finished = SqliteLogWriter.publish, threading.Event()

    def publish_slowly(self: SqliteLogWriter, chunks: Any, *arguments: Any, **named: Any) -> None:
        if chunks and not finished.is_set():
            time.sleep(DISK_SECONDS)
            finished.set()
        publish(self, chunks, *arguments, **named)

    monkeypatch.setattr(SqliteLogWriter, "publish", publish_slowly)
    return finished


@pytest.mark.any_version("only the client sends feedback")
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(1, id="few rows"),
        pytest.param(10_000, id="more than the buffers hold", marks=pytest.mark.deep),
    ],
)
def test_slow_disk_does_not_end_the_stream(
    short_timeout_server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    finished = slow_disk(monkeypatch)
    capture = Capture(short_timeout_server.url, tmp_path / "log.db", "shop")
    capture.start()
    first = sender(short_timeout_server)
    count = 0
    while not finished.is_set():
        statement = "INSERT INTO accounts SELECT n, repeat('x', 500) FROM generate_series({}, {}) n"
        short_timeout_server.execute(statement.format(count, count + rows - 1))
        count += rows
        time.sleep(0.3)
    capture.wait(Lsn.parse(short_timeout_server.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
    try:
        assert capture.transient == []
        assert sender(short_timeout_server) == first
        assert len(capture.changes("accounts")) == count
    finally:
        capture.stop()


def retained(server: EmbeddedPostgres, slot: str) -> int:
    """The bytes of WAL that the server retains for a slot."""
    query = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots"
    return int(server.execute(f"{query} WHERE slot_name = '{slot}'")[0][0])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same database", "another database"])
def test_idle_table_on_a_busy_server_retains_no_wal(
    database: Any, capture: Callable[..., Capture], elsewhere: bool
) -> None:
    """Postgres can restart decoding at a checkpoint; the slot has to advance to it."""
    database.execute(ACCOUNTS)
    server, slot = database.server, capture().config.slot
    busy = "postgres" if elsewhere else database.name
    server.execute("CREATE TABLE busy (id int, filler text)", busy)
    try:
        for _ in range(3):
            server.execute("INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 10000) n", busy)
            server.execute("CHECKPOINT")
            until(lambda: retained(server, slot) < 1 << 20, "a slot that retains less than a megabyte")
    finally:
        server.execute("DROP TABLE busy", busy)
