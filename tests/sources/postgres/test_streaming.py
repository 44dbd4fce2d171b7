"""Transactions that the server streams while they are in progress, or sends when they are prepared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.capturing import Capture

from penstock.changelog.sqlite.log import SqliteLogReader
from penstock.positions import Lsn
from penstock.testing.waiting import until

Start = Callable[..., Capture]
Now = Callable[[], Lsn]

SMALL_MEMORY = "?options=-c%20logical_decoding_work_mem%3D64kB"
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"


def staged(running: Capture) -> int:
    """The number of chunks of transactions in progress in the log."""
    with closing(SqliteLogReader(running.log)) as reader:
        return int(reader._db.execute("SELECT count(*) FROM chunk WHERE last_lsn IS NULL").fetchone()[0])


def ids(running: Capture) -> list[int]:
    return [change["after"]["id"] for change in running.changes("t")]


def insert(session: psycopg.Connection[Any], first: int, last: int) -> None:
    session.execute("INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(%s::int, %s) n", (first, last))


@pytest.fixture
def streamed(database: Any, capture: Start) -> Capture:
    database.execute(TABLE)
    return capture(parameters=SMALL_MEMORY)


def test_transaction_in_progress_is_staged_before_its_commit(database: Any, streamed: Capture, now: Now) -> None:
    with database.connect(autocommit=False) as long:
        insert(long, 1, 5000)
        until(lambda: staged(streamed) > 0, "parts of the transaction")
        database.execute("INSERT INTO t VALUES (9001, 'meanwhile')")
        streamed.wait(now())
        assert ids(streamed) == [9001]
        insert(long, 5001, 6000)
    streamed.wait(now())
    assert ids(streamed) == [9001, *range(1, 6001)]
    assert staged(streamed) == 0


def test_rolled_back_changes_leave_no_trace(database: Any, streamed: Capture, now: Now) -> None:
    with database.connect(autocommit=False) as long:
        insert(long, 1, 3000)
        long.execute("SAVEPOINT a")
        insert(long, 3001, 6000)
        long.execute("SAVEPOINT b")
        insert(long, 6001, 9000)
        until(lambda: staged(streamed) > 2, "parts of the transaction")
        long.execute("ROLLBACK TO a")
        insert(long, 10_001, 13_000)
        for n in range(200):
            long.execute("SAVEPOINT c")
            insert(long, 20_000 + n, 20_000 + n)
            long.execute("ROLLBACK TO c" if n % 2 else "RELEASE c")
    streamed.wait(now())
    kept = [*range(1, 3001), *range(10_001, 13_001), *range(20_000, 20_200, 2)]
    assert ids(streamed) == kept
    assert {change["_xid"] for change in streamed.changes("t")} == {streamed.changes("t")[0]["_xid"]}
    with database.connect(autocommit=False) as long:
        insert(long, 30_001, 35_000)
        until(lambda: staged(streamed) > 0, "parts of the transaction")
        long.rollback()
    database.execute("INSERT INTO t VALUES (9001, 'after')")
    streamed.wait(now())
    until(lambda: staged(streamed) == 0, "the parts to be discarded")
    assert ids(streamed) == [*kept, 9001]


def test_two_transactions_in_progress_and_a_restart(database: Any, streamed: Capture, now: Now) -> None:
    with database.connect(autocommit=False) as one, database.connect(autocommit=False) as two:
        for n in range(5):
            insert(one, n * 1000, n * 1000 + 999)
            insert(two, 10_000 + n * 1000, 10_000 + n * 1000 + 999)
        until(lambda: staged(streamed) > 1, "parts of both")
        streamed.stop()
        streamed.start()
        two.commit()
        insert(one, 5000, 5999)
        one.commit()
    streamed.wait(now())
    assert ids(streamed) == [*range(10_000, 15_000), *range(6000)]


def test_ddl_in_a_transaction_in_progress(database: Any, streamed: Capture, now: Now) -> None:
    with database.connect(autocommit=False) as long:
        insert(long, 1, 2000)
        long.execute("SAVEPOINT a")
        long.execute("ALTER TABLE t ADD COLUMN gone int DEFAULT 3")
        insert(long, 2001, 4000)
        until(lambda: staged(streamed) > 1, "parts of the transaction")
        long.execute("ROLLBACK TO a")
        insert(long, 4001, 6000)
        long.execute("ALTER TABLE t ADD COLUMN kept int")
        long.execute("INSERT INTO t SELECT n, 'y', n FROM generate_series(6001, 8000) n")
    streamed.wait(now())
    assert streamed.error("t") is None
    assert ids(streamed) == [*range(1, 2001), *range(4001, 8001)]
    assert [c["after"].get("kept") for c in streamed.changes("t")] == [*[None] * 4000, *range(6001, 8001)]


def test_ddl_in_a_transaction_committed_while_capture_was_stopped(database: Any, streamed: Capture, now: Now) -> None:
    """A session that had read the table before would send its first rows with columns that they do not have."""
    streamed.stop()
    with database.connect(autocommit=False) as long:
        insert(long, 1, 2000)
        long.execute("SAVEPOINT a")
        long.execute("ALTER TABLE t ADD COLUMN gone int DEFAULT 3")
        insert(long, 2001, 4000)
        long.execute("ROLLBACK TO a")
        insert(long, 4001, 6000)
        long.execute("ALTER TABLE t ADD COLUMN kept int")
        long.execute("INSERT INTO t SELECT n, 'y', n FROM generate_series(6001, 8000) n")
    streamed.start()
    streamed.wait(now())
    assert streamed.error("t") is None
    assert ids(streamed) == [*range(1, 2001), *range(4001, 8001)]
    assert [c["after"].get("kept", "none") for c in streamed.changes("t")] == [*["none"] * 4000, *range(6001, 8001)]


def test_prepared_transactions(database: Any, capture: Start, now: Now) -> None:
    database.needs(15, "a stream with prepared transactions")
    database.execute(TABLE)
    running = capture(two_phase=True)
    with database.connect() as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1, 'a'); SAVEPOINT s; INSERT INTO t VALUES (2, 'b')")
        session.execute("ROLLBACK TO s; PREPARE TRANSACTION 'one'")
        session.execute("BEGIN; INSERT INTO t VALUES (3, 'c'); PREPARE TRANSACTION 'two'")
        until(lambda: staged(running) == 2, "two prepared transactions")
        session.execute("INSERT INTO t VALUES (4, 'd')")
        running.wait(now())
        assert ids(running) == [4]
        running.stop()
        running.start()
        session.execute("ROLLBACK PREPARED 'two'")
        session.execute("COMMIT PREPARED 'one'")
        running.wait(now())
    assert ids(running) == [4, 1]
    assert staged(running) == 0
