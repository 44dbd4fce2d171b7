"""Exporting a snapshot: it waits for transactions, gives up without leftovers, and no timeout ends it."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect, connect_replication
from penstock.sources.postgres.replication import old_transactions
from penstock.sources.postgres.replication.slot import export_snapshot, import_snapshot
from penstock.sources.postgres.snapshot.copy import PageRange, copy_range
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.waiting import PATIENCE, until

TIMEOUTS = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"]
SHORT = 1.0


def slots(database: Any) -> int:
    query = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    return int(database.execute(query)[0][0])


def outlast_timeouts(database: Any) -> None:
    """Wait until the server has ended other sessions by the timeouts: one that is idle, one in a transaction."""
    with closing(psycopg.connect(database.url)) as idle, closing(psycopg.connect(database.url)) as in_transaction:
        in_transaction.execute("SELECT 1")
        pids = f"({idle.info.backend_pid}, {in_transaction.info.backend_pid})"
        alive = f"SELECT 1 FROM pg_stat_activity WHERE pid IN {pids}"
        until(lambda: not database.server.execute(alive), "the server to end sessions by timeouts")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_transactions, "_QUIET_SECONDS", 0.0)


@pytest.fixture
def open_transaction(database: Any) -> Any:
    """A transaction that blocks every snapshot export."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(database.url, application_name="forgotten") as session:
        session.execute("INSERT INTO t VALUES (424242)")
        yield session
        session.rollback()


def test_export_reports_the_blocking_transaction_and_continues_after_it(
    database: Any, open_transaction: Any, quick: None
) -> None:
    reported: list[str] = []

    def report(line: str) -> None:
        reported.append(line)
        open_transaction.commit()

    with export_snapshot(database.url, report=report) as snapshot, connect(database.url) as connection:
        import_snapshot(connection, snapshot.name)
        assert connection.execute("SELECT id FROM t").fetchall() == [(424242,)]
    assert f"the transaction of pid {open_transaction.info.backend_pid} (application forgotten," in reported[0]
    assert "424242" not in reported[0]


def test_export_gives_up_after_its_wait_and_leaves_no_slot(database: Any, open_transaction: Any) -> None:
    pid = open_transaction.info.backend_pid
    with (
        pytest.raises(TransientError, match=f"pid {pid} ") as caught,
        export_snapshot(database.url, wait=timedelta(seconds=0.2)),
    ):
        pytest.fail("there is no snapshot yet")
    assert f"pg_terminate_backend({pid})" in caught.value.hint
    until(lambda: slots(database) == 0, "the slot to be dropped")  # while the transaction is still open
    assert open_transaction.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS


def test_stopped_export_leaves_no_slot(database: Any, open_transaction: Any, quick: None) -> None:
    stop = threading.Event()
    with (
        pytest.raises(TransientError, match="stopped"),
        export_snapshot(database.url, report=lambda _: stop.set(), stop=stop),
    ):
        pytest.fail("there is no snapshot yet")
    until(lambda: slots(database) == 0, "the slot to be dropped")


def test_timeouts_do_not_end_the_exporter_or_a_copy(database: Any) -> None:
    names = [*TIMEOUTS, *(["transaction_timeout"] if database.version() >= 17 else [])]
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 200000)")
    (instance,) = PostgresSource.from_url(database.url, "copying").create_instances(1)
    for name in names:
        database.server.execute(f"ALTER DATABASE {database.name} SET {name} = '{int(SHORT * 1000)}ms'")
    for name in names:  # they apply to other sessions, but not to a patient one
        with psycopg.connect(database.url) as other, connect(database.url, patient=True) as ours:
            assert other.execute(f"SHOW {name}").fetchone() == (f"{SHORT:.0f}s",)
            assert ours.execute(f"SHOW {name}").fetchone() == ("0",)
    with connect_replication(database.url, patient=True) as replication:
        outlast_timeouts(database)
        assert replication.execute("IDENTIFY_SYSTEM").fetchone()
    with export_snapshot(database.url) as snapshot:
        outlast_timeouts(database)
        copy = copy_range(database.url, snapshot.name, instance.tables[0], PageRange(0, 2**32 - 1), Lsn(1))
        rows = next(copy).num_rows
        outlast_timeouts(database)  # the copying session waits for us
        assert rows + sum(batch.num_rows for batch in copy) == 200_000


def test_copy_waits_for_a_lock_despite_lock_timeout(database: Any) -> None:
    """A short ALTER TABLE does not fail the copy of the table."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    (instance,) = PostgresSource.from_url(database.url, "copying").create_instances(1)
    database.execute(f"ALTER DATABASE {database.name} SET lock_timeout = '{int(SHORT * 1000)}ms'")
    found: list[int] = []
    with export_snapshot(database.url) as snapshot, psycopg.connect(database.url) as owner:
        owner.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        batches = copy_range(database.url, snapshot.name, instance.tables[0], PageRange(0, 2**32 - 1), Lsn(1))
        copying = threading.Thread(target=lambda: found.append(sum(batch.num_rows for batch in batches)))
        copying.start()
        waiting = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database.name}' AND wait_event_type = 'Lock'"
        until(lambda: database.server.execute(waiting), "the copy to wait for the lock")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            database.execute("SELECT FROM t")  # the timeout applies to other sessions
        owner.commit()
        copying.join(PATIENCE)
    assert found == [1]


def test_export_without_the_replication_attribute_fails(database: Any) -> None:
    role = f"{database.name}_role"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with (
            pytest.raises(Exception, match=r"(?i)replication"),
            export_snapshot(database.server.url_for(database.name, role)),
        ):
            pytest.fail("the role has no REPLICATION attribute")
    finally:
        database.execute(f"DROP ROLE {role}")
