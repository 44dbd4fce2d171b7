"""Watermarks and heartbeats of a capture, against a real server, and interference by other sessions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from tests.sources.postgres.capturing import Capture
from tests.sources.postgres.test_streaming import SMALL_MEMORY, staged

from penstock.changelog.sqlite.log import SqliteLogReader
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.options import Watermarks
from penstock.sources.postgres.replication import publication_watch
from penstock.sources.postgres.replication.heartbeat import Beat
from penstock.sources.postgres.replication.interference import MarkerKind
from penstock.sources.postgres.replication.watermark import Mark, Watermark, write_watermark
from penstock.testing.waiting import until

Start = Callable[..., Capture]
Now = Callable[[], Lsn]

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"
BY_TABLE = {"watermarks": "table", "heartbeat": "table", "heartbeat_interval": 3600.0}
BY_MESSAGE = {"watermarks": "message", "heartbeat": "message", "heartbeat_interval": 0.1}
COPY = uuid4().hex


def write(running: Capture, number: int, mark: Mark, window: str = COPY) -> Lsn:
    """Write a watermark as an incremental snapshot does."""
    config = running.config
    with connect(config.connection) as connection:
        return write_watermark(connection, config.watermarks, Watermark(config.identity, window, number, mark))


def ids(running: Capture) -> list[int]:
    return [change["after"]["id"] for change in running.changes("t")]


def capture_error(running: Capture) -> DefiniteError:
    """Wait until capture has capture_error; return its error."""
    until(lambda: running.failure is not None, "capture to fail")
    assert isinstance(running.failure, DefiniteError)
    return running.failure


@pytest.fixture(params=[BY_TABLE, BY_MESSAGE], ids=["table", "message"])
def marker_capture(request: pytest.FixtureRequest, database: Any, capture: Start) -> Capture:
    """A capture that writes markers to tables, and one that writes messages."""
    database.execute(TABLE)
    return capture(**request.param)


def test_own_watermarks_are_accepted_and_not_logged(database: Any, marker_capture: Capture, now: Now) -> None:
    for number in (1, 2):
        write(marker_capture, number, Mark.LOW)
        database.execute(f"INSERT INTO t VALUES ({number}, 'a')")
        lsn = write(marker_capture, number, Mark.HIGH)
    marker_capture.wait(lsn)
    assert ids(marker_capture) == [1, 2]
    with closing(SqliteLogReader(marker_capture.log)) as reader:
        assert [str(table) for table in reader.tables()] == ["public.t"]
    assert marker_capture.transient == []
    marker_capture.stop()


def test_capture_resumes_between_low_and_high(database: Any, marker_capture: Capture, now: Now) -> None:
    marker_capture.wait(write(marker_capture, 1, Mark.LOW))
    marker_capture.stop()
    high = write(marker_capture, 1, Mark.HIGH)
    marker_capture.start()
    marker_capture.wait(high)
    marker_capture.wait(write(marker_capture, 2, Mark.LOW))
    marker_capture.stop()
    marker_capture.start()
    marker_capture.wait(write(marker_capture, 2, Mark.LOW))
    marker_capture.wait(write(marker_capture, 2, Mark.HIGH))
    assert ids(marker_capture) == []


def interfere(database: Any, running: Capture, *statements: str) -> int:
    """Interfere in a transaction that also inserts row 2; row 1 is committed before it, row 3 after. Return its xid."""
    database.execute("INSERT INTO t VALUES (1, 'before')")
    with database.connect(autocommit=False) as foreign:
        foreign.execute("INSERT INTO t VALUES (2, 'with it')")
        for statement in statements:
            foreign.execute(statement)
        (xid,) = foreign.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    database.execute("INSERT INTO t VALUES (3, 'after')")
    return int(xid)


FOREIGN = {
    "a foreign update": ["UPDATE {table} SET token = '{foreign}'"],
    "a malformed token": ["UPDATE {table} SET token = 'hello'"],
    "an empty token": ["UPDATE {table} SET token = ''"],
    "a deleted row": ["DELETE FROM {table}"],
    "a truncated table": ["TRUNCATE {table}"],
    "truncated with others": ["TRUNCATE {table}, other"],
    "a second row": ["ALTER TABLE {table} DROP CONSTRAINT {name}_id_check", "INSERT INTO {table} VALUES (2, 'x')"],
    "another id": ["ALTER TABLE {table} DROP CONSTRAINT {name}_id_check", "UPDATE {table} SET id = 2"],
    "another column": ["ALTER TABLE {table} ADD COLUMN n int", "UPDATE {table} SET n = 1"],
    "a row deleted and inserted": ["DELETE FROM {table}", "INSERT INTO {table} VALUES (1, '{own}')"],
}


@pytest.mark.parametrize("subject", list(MarkerKind))
@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
def test_interference_stops_the_source_after_all_earlier_commits(
    database: Any, capture: Start, now: Now, subject: MarkerKind, statements: list[str]
) -> None:
    database.execute(f"{TABLE}; CREATE TABLE other (id int PRIMARY KEY)")
    running = capture(**BY_TABLE)
    running.wait(write(running, 1, Mark.LOW))
    identity = running.config.identity
    beat, high = Beat(identity, 7).token(), Watermark(identity, COPY, 1, Mark.HIGH).token()
    own = high if subject is MarkerKind.WATERMARK else beat
    names = {"own": own, "foreign": own.replace(identity, "c3" * 16)}
    made = [text.replace("{table}", str(subject.table)).replace("{name}", subject.table.name) for text in statements]
    for placeholder, token in names.items():
        made = [text.replace(f"{{{placeholder}}}", token) for text in made]
    xid = interfere(database, running, *made)
    error = capture_error(running)
    assert str(subject.table) in error.message
    assert f"by transaction {xid}, at " in error.message
    assert error.hint
    assert (ids(running), running.durable() < now()) == ([1], True)
    running.start()  # it is still in the stream
    assert capture_error(running).message == error.message
    assert ids(running) == [1]


@pytest.mark.parametrize("subject", list(MarkerKind))
def test_malformed_message_stops_the_source(database: Any, capture: Start, subject: MarkerKind) -> None:
    database.execute(TABLE)
    running = capture(**BY_MESSAGE)
    interfere(database, running, f"SELECT pg_logical_emit_message(true, '{subject.prefix}', 'hello')")
    assert subject.prefix in capture_error(running).message
    assert ids(running) == [1]


def test_message_outside_a_transaction_stops_the_source(database: Any, capture: Start) -> None:
    database.execute(TABLE)
    running = capture(**BY_MESSAGE)
    database.execute("INSERT INTO t VALUES (1, 'before')")
    database.execute("SELECT pg_logical_emit_message(false, 'penstock.watermark', 'hello')")
    database.execute("INSERT INTO t VALUES (2, 'after')")
    assert "penstock.watermark" in capture_error(running).message
    assert ids(running) == [1]


def until_sent(database: Any, lsn: Lsn) -> None:
    """Wait until the server has sent the WAL up to a position, committed or not, to all captures of a database."""
    database.execute("SELECT pg_logical_emit_message(true, 'flushed', '')")
    sent = "SELECT count(*), min(sent_lsn)::text FROM pg_stat_replication WHERE application_name LIKE 'penstock %s%%'"
    query = sent % database.name

    def all_sent() -> bool:
        ((count, least),) = database.execute(query)
        return bool(count) and Lsn.parse(least) >= lsn

    until(all_sent, f"everything up to {lsn} to be sent")


def test_rolled_back_interference_is_ignored(database: Any, capture: Start, now: Now) -> None:
    database.execute(TABLE)
    running = capture(parameters=SMALL_MEMORY, **BY_TABLE)
    other = capture(parameters=SMALL_MEMORY, watermarks="message")
    bad = (
        "UPDATE dblog_meta.watermarks SET token = 'x'; SELECT pg_logical_emit_message(true, 'penstock.watermark', 'x')"
    )
    with database.connect(autocommit=False) as session:
        session.execute(bad)
        session.rollback()
        session.execute("INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(1, 5000) n; SAVEPOINT s")
        session.execute(bad)
        session.execute("INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(5001, 9000) n")
        until(lambda: staged(running) > 0 and staged(other) > 0, "parts of the transaction")
        until_sent(database, now())
        session.execute("ROLLBACK TO s")
    for capturing in (running, other):
        capturing.wait(now())
        assert len(ids(capturing)) == 5000
    assert [type(error) for error in other.transient] == [TransientError], (
        "the transaction is requested again without streaming"
    )
    assert running.transient == []
    running.wait(write(running, 1, Mark.LOW))


@pytest.mark.parametrize("kind", list(Watermarks))
def test_interference_in_a_streamed_transaction(database: Any, capture: Start, kind: Watermarks) -> None:
    database.execute(TABLE)
    running = capture(parameters=SMALL_MEMORY, watermarks=str(kind))
    bad = {
        Watermarks.TABLE: "UPDATE dblog_meta.watermarks SET token = 'x'",
        Watermarks.MESSAGE: "SELECT pg_logical_emit_message(true, 'penstock.watermark', 'x')",
    }
    database.execute("INSERT INTO t VALUES (10001, 'before')")
    with database.connect(autocommit=False) as session:
        session.execute(bad[kind])
        session.execute("INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(1, 5000) n")
        until(lambda: staged(running) > 0, "parts of the transaction")
        database.execute("INSERT INTO t VALUES (10002, 'meanwhile')")
    assert "interference" in capture_error(running).message
    assert ids(running) == [10001, 10002]


@pytest.mark.parametrize("two_phase", [False, True])
def test_interference_in_a_prepared_transaction(database: Any, capture: Start, now: Now, two_phase: bool) -> None:
    database.needs(15, "a stream with prepared transactions")
    database.execute(TABLE)
    running = capture(two_phase=two_phase, **BY_TABLE)
    with database.connect() as session:
        session.execute("BEGIN; UPDATE dblog_meta.watermarks SET token = 'x'; PREPARE TRANSACTION 'bad'")
        if two_phase:
            assert "interference" in capture_error(running).message
        else:
            running.wait(now())
        session.execute("COMMIT PREPARED 'bad'")
    assert "interference" in capture_error(running).message


def test_sources_of_one_database_do_not_interfere_with_each_other(database: Any, capture: Start, now: Now) -> None:
    """All of them see all messages; one of them writes its markers to tables."""
    database.execute(TABLE)
    both = [capture(**BY_MESSAGE), capture(**BY_MESSAGE), capture(**BY_TABLE)]
    for number in range(1, 4):
        for mark in Mark:
            for running in both:
                write(running, number, mark, window=running.config.identity)
        database.execute(f"INSERT INTO t VALUES ({number}, 'a')")
    positions = [running.durable() for running in both]
    for running in both:
        running.wait(now())
        assert ids(running) == [1, 2, 3]
    until(lambda: all(r.durable() > at for r, at in zip(both, positions, strict=True)), "heartbeats")
    for running in both:
        running.stop()


def test_source_resumes_after_accepted_interference(database: Any, capture: Start, now: Now) -> None:
    database.execute(TABLE)
    running = capture(**BY_TABLE)
    running.wait(write(running, 1, Mark.LOW))
    constraint = "ALTER TABLE dblog_meta.watermarks DROP CONSTRAINT watermarks_id_check"
    interfere(database, running, constraint, "UPDATE dblog_meta.watermarks SET id = 2, token = 'x'")
    capture_error(running)
    running.config = running.config.accept_interference()
    running.start()
    running.wait(write(running, 1, Mark.LOW))
    running.wait(write(running, 1, Mark.HIGH))
    assert ids(running) == [1, 2, 3]
    database.execute("DELETE FROM dblog_meta.watermarks")
    assert "deleted" in capture_error(running).message
    database.execute("DROP TABLE dblog_meta.watermarks")
    with pytest.raises(DefiniteError, match="no longer exists"):
        running.config.accept_interference()


def test_source_resumes_after_accepted_messages(database: Any, capture: Start) -> None:
    database.execute(TABLE)
    running = capture()
    interfere(database, running, "SELECT pg_logical_emit_message(true, 'penstock.watermark', 'x')")
    capture_error(running)
    running.config = running.config.accept_interference()
    running.start()
    running.wait(write(running, 1, Mark.LOW))
    assert ids(running) == [1, 2, 3]


@pytest.mark.parametrize(
    "ddl",
    ["DROP TABLE dblog_meta.{}", 'ALTER PUBLICATION "{pub}" DROP TABLE dblog_meta.{}'],
    ids=["dropped", "left out"],
)
@pytest.mark.parametrize("subject", list(MarkerKind))
def test_unpublished_meta_table_stops_the_source(
    database: Any, capture: Start, monkeypatch: pytest.MonkeyPatch, ddl: str, subject: MarkerKind
) -> None:
    """This is not in the stream, and interference with the table would not be detected."""
    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)
    database.execute(TABLE)
    running = capture(**BY_TABLE)
    database.execute(ddl.format(f"{subject}s", pub=running.config.publication))
    assert f"dblog_meta.{subject}s" in capture_error(running).message


def test_missing_heartbeat_row_stops_the_source(database: Any, capture: Start) -> None:
    """A user publication may not publish TRUNCATE."""
    database.execute(f"{TABLE}; CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert, update, delete')")
    user_owned = {"publication": "p", "publication_ownership": "user"}
    running = capture(**{**BY_TABLE, **user_owned, "heartbeat_interval": 0.1})
    database.execute("TRUNCATE dblog_meta.heartbeats")
    assert "dblog_meta.heartbeats is missing" in capture_error(running).message


def test_locked_heartbeat_row_delays_heartbeats_only(database: Any, capture: Start, now: Now) -> None:
    database.execute(TABLE)
    running = capture(**{**BY_TABLE, "heartbeat_interval": 0.1})
    token = "SELECT token FROM dblog_meta.heartbeats"
    with database.connect(autocommit=False) as holding:
        holding.execute(f"{token} FOR UPDATE")
        for number in range(5):
            database.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            running.wait(now())
        held = database.execute(token)
    until(lambda: database.execute(token) != held, "a heartbeat")
    assert ids(running) == [*range(5)]
    running.stop()
