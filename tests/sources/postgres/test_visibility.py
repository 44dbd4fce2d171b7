"""Columns that are added by a transaction which is sent before it is visible to other sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.capturing import Capture

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import TransientError
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.replication import old_transactions as visibility
from penstock.sources.postgres.replication.old_transactions import wait_until_visible
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import PATIENCE, until


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """Commits with ``synchronous_commit = on`` wait for a standby that does not exist, until `release`."""
    waiting = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with start_postgres(fsync=False, settings=waiting) as started:
        yield started


def release(server: EmbeddedPostgres) -> None:
    server.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
    server.execute("SELECT pg_reload_conf()")


def commit_invisibly(server: EmbeddedPostgres) -> threading.Thread:
    """Add a column and write to it, in a transaction that is durable but not visible yet."""

    def commit() -> None:
        with psycopg.connect(server.url) as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("ALTER TABLE orders ADD COLUMN extra text DEFAULT 'old'")
            connection.execute("INSERT INTO orders VALUES (2, 'new')")

    thread = threading.Thread(target=commit)
    thread.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    until(lambda: server.execute(waits) == [(1,)], "a commit that waits")
    return thread


def test_columns_added_by_a_transaction_that_is_not_visible_yet(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_visible, checks = visibility._is_visible, list[int]()

    def counted(connection: psycopg.Connection[Any], xid: int) -> bool:
        checks.append(xid)
        return is_visible(connection, xid)

    monkeypatch.setattr(visibility, "_is_visible", counted)
    monkeypatch.setattr(visibility, "_PATIENCE_SECONDS", PATIENCE)
    server.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    capture = Capture(server.url, tmp_path / "log.db", "shop")
    capture.start()
    thread = commit_invisibly(server)
    until(lambda: len(checks) >= 2, "capture to wait for the transaction")
    assert (capture.error("orders"), capture.changes("orders")) == (None, [])
    release(server)
    thread.join()
    server.execute("INSERT INTO orders VALUES (3, 'newer')")
    until(lambda: len(capture.changes("orders")) == 2, "the changes")
    assert [change["after"] for change in capture.changes("orders")] == [
        {"id": 2, "extra": "new"},
        {"id": 3, "extra": "newer"},
    ]
    assert capture.error("orders") is None
    capture.stop()
    assert capture.transient == []


def test_transaction_that_stays_invisible_is_a_transient_error(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "_PATIENCE_SECONDS", 0.2)
    server.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    thread = commit_invisibly(server)
    ((xid,),) = server.execute("SELECT backend_xid::text::bigint FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    with connect(server.url) as connection:
        with pytest.raises(TransientError, match=f"transaction {xid} has committed but is not visible"):
            wait_until_visible(connection, xid)
        release(server)
        thread.join()
        wait_until_visible(connection, xid)
        wait_until_visible(connection, 3)
