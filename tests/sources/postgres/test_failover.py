"""Failover under load to a standby: the log continues exactly there, or capture stops with the reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.capturing import Capture, merged

from penstock.changelog.sqlite.log import SqliteLog
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect_replication
from penstock.sources.postgres.instance import PostgresInstance
from penstock.testing.postgres import chosen_version, start_postgres
from penstock.testing.waiting import stays, until

STANDBY = "standby_1"
TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
CREATE TABLE totals (id int PRIMARY KEY, transactions bigint);
INSERT INTO totals VALUES (1, 0)
"""
from_17 = pytest.mark.skipif((chosen_version() or 18) < 17, reason="slots are synchronized since Postgres 17")


class Cluster:
    """A primary, a standby that follows it, and a capture that knows the addresses of both."""

    def __init__(self, folder: Path, stack: ExitStack, *, synchronized: bool = True) -> None:
        self._stack = stack
        self.primary = stack.enter_context(start_postgres())
        self.primary.execute(TABLES)
        following = {"sync_replication_slots": "on"} if synchronized else {}
        self.standby = stack.enter_context(self.primary.standby(STANDBY, **following))
        self.capture = Capture(self.url, folder / "log.db", "shop")
        stack.callback(self._stop)
        if synchronized:
            self._make_failover_slot()

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def _stop(self) -> None:
        self.capture.failure = None
        self.capture.stop()

    def _make_failover_slot(self) -> None:
        with connect_replication(self.primary.url) as replication:
            replication.execute(f"ALTER_REPLICATION_SLOT {self.capture.config.slot} (FAILOVER true)")

    def require_standby_confirmation(self) -> None:
        self.primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{STANDBY}'")
        self.primary.execute("SELECT pg_reload_conf()")

    def wait_for_slot_sync(self) -> None:
        """Wait until the standby has the persistent slot; logging the running transactions speeds this up."""
        query = (
            "SELECT 1 FROM pg_replication_slots"
            f" WHERE slot_name = '{self.capture.config.slot}' AND synced AND NOT temporary"
        )

        def there() -> bool:
            self.primary.execute("SELECT pg_log_standby_snapshot()")
            return bool(self.standby.execute(query))

        until(there, "the slot on the standby")

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


class Writer(threading.Thread):
    """Writes until it is finished: each transaction adds an account and counts itself. It reconnects after an error."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self._done = threading.Event()
        self.written: list[int] = []

    def run(self) -> None:
        at = 0
        while not self._done.is_set():
            try:
                with psycopg.connect(self.url) as connection:
                    while not self._done.is_set():
                        at += 1
                        connection.execute("INSERT INTO accounts VALUES (%s, %s)", (at, at % 7))
                        connection.execute("UPDATE totals SET transactions = transactions + 1")
                        connection.commit()
                        self.written.append(at)
            except psycopg.OperationalError:
                time.sleep(0.05)

    def wait_for_more(self, count: int) -> None:
        """Wait for `count` more transactions."""
        goal = len(self.written) + count
        until(lambda: len(self.written) >= goal, "more transactions")

    def finish(self) -> None:
        self._done.set()
        self.join()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def wal_end(server: EmbeddedPostgres) -> Lsn:
    return Lsn.parse(server.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])


def permanent_error(capture: Capture, **changed: Any) -> DefiniteError:
    """Start a capture that cannot resume; return its error."""
    capture.config = capture.config.model_copy(update=changed)
    capture.start()
    with pytest.raises(DefiniteError) as caught:
        capture.stop()
    assert "penstock drop" in caught.value.hint
    return caught.value


def whole_transactions(capture: Capture) -> bool:
    """Whether each transaction is complete in both tables, in the same order."""
    accounts = [change["_lsn"] for change in capture.changes("accounts")]
    return accounts == [change["_lsn"] for change in capture.changes("totals")]


@from_17
@pytest.mark.parametrize("failovers", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_failover_neither_loses_nor_duplicates_changes(tmp_path: Path, stack: ExitStack, failovers: int) -> None:
    cluster = Cluster(tmp_path, stack)
    capture = cluster.capture
    cluster.require_standby_confirmation()
    capture.start()
    writer = Writer(cluster.url)
    stack.callback(writer.finish)
    writer.start()
    cluster.wait_for_slot_sync()
    writer.wait_for_more(300)
    cluster.fail_over()
    writer.wait_for_more(300)
    if failovers == 2:
        fail_over_again(cluster, stack, writer)
    writer.finish()
    server = cluster.standby
    capture.wait(wal_end(server))
    capture.stop()
    found = [change["after"]["id"] for change in capture.changes("accounts")]
    assert found == [row[0] for row in server.execute("SELECT id FROM accounts ORDER BY id")]
    assert len(found) > 500
    totals = merged({1: {"id": 1, "transactions": 0}}, capture.changes("totals"))
    assert totals == {1: {"id": 1, "transactions": len(found)}}
    assert whole_transactions(capture)
    assert (capture.config.timeline, capture.config.forked_at > 0) == (1 + failovers, True)


def fail_over_again(cluster: Cluster, stack: ExitStack, writer: Writer) -> None:
    """The promoted server gets a standby of its own, and fails as well."""
    cluster.capture.stop()
    cluster.primary = cluster.standby
    cluster.standby = stack.enter_context(cluster.primary.standby(STANDBY, sync_replication_slots="on"))
    writer.url = cluster.url
    cluster.capture.config = cluster.capture.config.model_copy(update={"connection": cluster.url})
    cluster.require_standby_confirmation()
    cluster.capture.start()
    cluster.wait_for_slot_sync()
    writer.wait_for_more(100)
    cluster.fail_over()
    writer.wait_for_more(100)


@from_17
def test_log_ahead_of_the_promoted_server_is_rejected(tmp_path: Path, stack: ExitStack) -> None:
    """Capture did not wait for the standby while that was stopped."""
    cluster = Cluster(tmp_path, stack)
    capture = cluster.capture
    capture.start()
    cluster.primary.execute("INSERT INTO accounts VALUES (1, 1)")
    cluster.wait_for_slot_sync()
    cluster.standby.stop()
    cluster.primary.execute("INSERT INTO accounts VALUES (2, 2)")
    capture.wait(wal_end(cluster.primary))
    capture.stop()
    cluster.primary.kill()
    cluster.standby.start()
    cluster.standby.promote()
    assert cluster.standby.execute("SELECT id FROM accounts") == [(1,)]
    error = permanent_error(capture)
    assert "ahead of the server after failover" in error.message
    assert "synchronized_standby_slots" in error.hint


@from_17
def test_capture_waits_for_an_absent_standby(tmp_path: Path, stack: ExitStack) -> None:
    """Neither a transaction nor a keepalive may advance the log beyond the WAL of the standby."""
    cluster = Cluster(tmp_path, stack)
    capture = cluster.capture
    cluster.require_standby_confirmation()
    capture.start()
    cluster.primary.execute("INSERT INTO accounts VALUES (1, 1)")
    capture.wait(wal_end(cluster.primary))
    cluster.wait_for_slot_sync()
    cluster.standby.stop()
    cluster.primary.execute("INSERT INTO accounts VALUES (2, 2); CREATE TABLE busy AS SELECT generate_series(1, 10000)")
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"
    until(lambda: cluster.primary.execute(waits), "the server to wait for the standby")
    stays(lambda: len(capture.changes("accounts")) == 1, "the second row is held back", 1)
    assert [change["after"]["id"] for change in capture.changes("accounts")] == [1]
    cluster.primary.kill()
    cluster.standby.start()
    cluster.standby.promote()
    cluster.standby.execute("INSERT INTO accounts VALUES (3, 3)")
    capture.wait(wal_end(cluster.standby))
    capture.stop()
    assert [change["after"]["id"] for change in capture.changes("accounts")] == [1, 3]


def test_slot_that_was_not_synchronized_is_rejected(tmp_path: Path, stack: ExitStack) -> None:
    """As before Postgres 17, and as in a restored backup: same system, later timeline, no slot."""
    cluster = Cluster(tmp_path, stack, synchronized=False)
    capture = cluster.capture
    capture.start()
    capture.stop()
    cluster.primary.stop()
    cluster.standby.promote()
    error = permanent_error(capture)
    assert f'replication slot "{capture.config.slot}" was not synchronized' in error.message
    assert "sync_replication_slots" in error.hint
    cluster.standby.execute(f"SELECT pg_create_logical_replication_slot('{capture.config.slot}', 'pgoutput')")
    assert "was not synchronized" in permanent_error(capture).message


@from_17
def test_standby_and_old_primary_are_rejected(tmp_path: Path, stack: ExitStack) -> None:
    """A standby, the restarted old primary, and another server that was promoted to the same timeline."""
    cluster = Cluster(tmp_path, stack)
    capture = cluster.capture
    capture.start()
    cluster.wait_for_slot_sync()
    capture.stop()
    with_standby = capture.config.model_copy(update={"connection": cluster.standby.url})
    with pytest.raises(TransientError, match="is a standby") as caught:
        PostgresInstance(with_standby, SqliteLog(capture.log)).run(threading.Event(), lambda: None)
    assert "target_session_attrs" in caught.value.hint
    cluster.fail_over()
    capture.start()
    cluster.standby.execute("INSERT INTO accounts VALUES (1, 1)")
    capture.wait(wal_end(cluster.standby))
    capture.stop()
    followed = capture.config
    assert followed.timeline == 2
    assert "timeline 2 began at" in permanent_error(capture, forked_at=followed.forked_at + 8).message
    cluster.primary.start()
    error = permanent_error(
        capture, **followed.model_dump(include={"forked_at", "timeline"}), connection=cluster.primary.url
    )
    assert "on an earlier timeline (timeline 1; the log is on timeline 2)" in error.message
    assert "old primary" in error.hint


def test_another_server_at_the_address_is_rejected(tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(start_postgres(fsync=False))
    server.execute(TABLES)
    capture = Capture(server.url, tmp_path / "log.db", "shop")
    capture.start()
    capture.stop()
    other = stack.enter_context(start_postgres(fsync=False))
    error = permanent_error(capture, connection=other.url)
    assert "does not continue the history of the log: its system identifier" in error.message
