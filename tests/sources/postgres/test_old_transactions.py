"""Reports of the oldest transaction: of sessions, of prepared transactions, and with few privileges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import TransientError
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.replication import old_transactions
from penstock.sources.postgres.replication.old_transactions import (
    OldTransaction,
    next_transaction,
    oldest_transaction,
    wait_for_transactions_before,
)
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until

LONG = timedelta(minutes=2)
Opened = Callable[..., psycopg.Connection[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A separate server, because transactions of all databases count."""
    with start_postgres(fsync=False, settings={"max_prepared_transactions": "4", "autovacuum": "off"}) as started:
        started.execute("CREATE ROLE stranger LOGIN")
        started.execute("CREATE DATABASE other")
        started.execute("CREATE TABLE t (id int)", "other")
        yield started


@pytest.fixture
def opened(server: EmbeddedPostgres) -> Iterator[Opened]:
    """Open transactions in another database than the observer; all are ended after the test."""
    sessions = []

    def begin(application: str, statement: str = "INSERT INTO t VALUES (1)") -> psycopg.Connection[Any]:
        session = psycopg.connect(server.url_for("other"), application_name=application)
        sessions.append(session)
        session.execute(statement)  # psycopg begins a transaction
        return session

    yield begin
    for session in sessions:
        session.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_transactions, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(old_transactions, "_POLL_SECONDS", 0.01)


def test_oldest_transaction_with_an_xid_is_found(server: EmbeddedPostgres, opened: Opened) -> None:
    opened("reader", "SELECT * FROM t")
    with connect(server.url) as connection:
        assert oldest_transaction(connection) is None
        first = opened("older")
        boundary = next_transaction(connection)
        second = opened("younger")
        found = oldest_transaction(connection)
        assert found is not None
        assert (found.pid, found.application, found.database) == (first.info.backend_pid, "older", "other")
        assert found.seconds is not None
        before = oldest_transaction(connection, boundary)
        assert before is not None
        assert before.pid == found.pid
        first.rollback()
        found = oldest_transaction(connection)
        assert found is not None
        assert found.pid == second.info.backend_pid
        assert oldest_transaction(connection, boundary) is None


def test_prepared_transaction_is_named_by_its_gid(server: EmbeddedPostgres, opened: Opened, quick: None) -> None:
    session = opened("preparing")
    session.execute("PREPARE TRANSACTION 'it''s mine'")
    try:
        with connect(server.url) as connection:
            found = oldest_transaction(connection)
            assert found is not None
            assert (found.pid, found.gid) == (None, "it's mine")
            with pytest.raises(TransientError, match='prepared transaction "it\'s mine"') as caught:
                wait_for_transactions_before(
                    connection, next_transaction(connection), timedelta(0), print, threading.Event()
                )
        assert "ROLLBACK PREPARED 'it''s mine'" in caught.value.hint
    finally:
        server.execute("ROLLBACK PREPARED 'it''s mine'", "other")


def test_age_is_unknown_without_privileges(server: EmbeddedPostgres, opened: Opened) -> None:
    session = opened("shy")
    with connect(server.url_for("postgres", "stranger")) as connection:
        found = oldest_transaction(connection)
    assert found is not None
    assert (found.pid, found.application, found.seconds) == (session.info.backend_pid, "shy", None)
    assert str(session.info.backend_pid) in str(found)
    assert "pg_read_all_stats" in str(found)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 seconds"), (119, "119 seconds"), (725, "12 minutes"), (7200, "2 hours"), (200_000, "2 days")],
)
def test_ages_in_words(seconds: float, words: str) -> None:
    found = OldTransaction(7, None, "psql", "alice", "shop", seconds)
    assert str(found) == f"the transaction of pid 7 (application psql, user alice, database shop), open for {words}"


def test_wait_is_for_earlier_transactions_only(server: EmbeddedPostgres, opened: Opened, quick: None) -> None:
    first = opened("older")
    reported: list[str] = []
    with connect(server.url) as connection:
        boundary = next_transaction(connection)
        opened("younger")

        def report(line: str) -> None:
            reported.append(line)
            first.rollback()

        wait_for_transactions_before(connection, boundary, LONG, report, threading.Event())
    (line,) = reported
    assert line.startswith(f"waiting for the transaction of pid {first.info.backend_pid} (application older,")
    assert "INSERT" not in line


def test_wait_gives_up_and_names_the_transaction(server: EmbeddedPostgres, opened: Opened, quick: None) -> None:
    pid = opened("older", "INSERT INTO t VALUES (424242)").info.backend_pid
    with connect(server.url) as connection, pytest.raises(TransientError, match=f"pid {pid} .*open for") as caught:
        wait_for_transactions_before(connection, next_transaction(connection), timedelta(0), print, threading.Event())
    assert f"pg_terminate_backend({pid})" in caught.value.hint
    assert "snapshot_wait" in caught.value.hint
    assert "424242" not in str(caught.value)


def test_wait_can_be_stopped(server: EmbeddedPostgres, opened: Opened, quick: None) -> None:
    opened("older")
    stop = threading.Event()
    with connect(server.url) as connection:
        wait_for_transactions_before(connection, next_transaction(connection), LONG, lambda _: stop.set(), stop)
    assert stop.is_set()


def test_next_xid_is_after_all_running_transactions_and_is_not_consumed(
    server: EmbeddedPostgres, opened: Opened
) -> None:
    """The xmax of a snapshot is not: it follows the last transaction that has ended."""
    given = "SELECT pg_current_xact_id()::text::bigint"
    row = opened("running", given).execute(given).fetchone()
    assert row is not None
    with connect(server.url) as connection:
        xmax = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
        assert xmax == row
        assert next_transaction(connection) == next_transaction(connection) == row[0] + 1


def test_wrapped_xids_are_compared_as_in_postgres(server: EmbeddedPostgres, opened: Opened) -> None:
    opened("older")
    with connect(server.url) as connection:
        epoch = 1 << 32
        assert oldest_transaction(connection, next_transaction(connection) + epoch) is not None


def test_wait_for_a_transaction_that_the_server_does_not_show(server: EmbeddedPostgres, quick: None) -> None:
    """As on a standby, for a transaction of the primary: it is in no view, and the wait continues."""
    with connect(server.url) as connection:
        before = next_transaction(connection) + 1000
        until(lambda: oldest_transaction(connection, before) is None, "the sessions of other tests to be gone")
        with pytest.raises(TransientError, match="does not show"):
            wait_for_transactions_before(connection, before, timedelta(0), print, threading.Event())
