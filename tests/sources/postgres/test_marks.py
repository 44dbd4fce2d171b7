"""Watermarks and heartbeats of a capture, against a real server; and somebody who interferes with them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from tests.sources.postgres.capturing import Capture
from tests.sources.postgres.test_streaming import SMALL_MEMORY, staged

from penstock.changelog.sqlite.reader import SqliteLogReader
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres import watch
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.heartbeat import Beat
from penstock.sources.postgres.options import Watermarks
from penstock.sources.postgres.signals import Subject
from penstock.sources.postgres.watermark import Mark, Watermark, write_watermark
from penstock.testing.waiting import until

Start = Callable[..., Capture]
Now = Callable[[], Lsn]

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"
BY_TABLE = {"watermarks": "table", "heartbeat": "table", "heartbeat_interval": 3600.0}
BY_MESSAGE = {"watermarks": "message", "heartbeat": "message", "heartbeat_interval": 0.1}
COPY = uuid4().hex


def write(running: Capture, number: int, mark: Mark, window: str = COPY) -> Lsn:
    """Write a watermark as a copy does."""
    config = running.config
    with connect(config.connection) as connection:
        return write_watermark(connection, config.watermarks, Watermark(config.identity, window, number, mark))


def ids(running: Capture) -> list[int]:
    return [change["after"]["id"] for change in running.changes("t")]


def failed(running: Capture) -> DefiniteError:
    """Wait for the end of a capture; return what it died of."""
    until(lambda: running.failure is not None, "the end of capture")
    assert isinstance(running.failure, DefiniteError)
    return running.failure


@pytest.fixture(params=[BY_TABLE, BY_MESSAGE], ids=["table", "message"])
def marking(request: pytest.FixtureRequest, database: Any, capture: Start) -> Capture:
    """A capture that marks by table, and one that marks by messages."""
    database.execute(TABLE)
    return capture(**request.param)


def test_watermarks_pass_and_are_not_in_the_log(database: Any, marking: Capture, now: Now) -> None:
    for number in (1, 2):
        write(marking, number, Mark.LOW)
        database.execute(f"INSERT INTO t VALUES ({number}, 'a')")
        lsn = write(marking, number, Mark.HIGH)
    marking.wait(lsn)
    assert ids(marking) == [1, 2]
    with closing(SqliteLogReader(marking.log)) as reader:
        assert [str(table) for table in reader.tables()] == ["public.t"]
    assert marking.transient == []
    marking.stop()


def test_a_restart_between_low_and_high_goes_on(database: Any, marking: Capture, now: Now) -> None:
    marking.wait(write(marking, 1, Mark.LOW))
    marking.stop()
    high = write(marking, 1, Mark.HIGH)
    marking.start()
    marking.wait(high)
    marking.wait(write(marking, 2, Mark.LOW))
    marking.stop()
    marking.start()
    marking.wait(write(marking, 2, Mark.LOW))
    marking.wait(write(marking, 2, Mark.HIGH))
    assert ids(marking) == []


def disturb(database: Any, running: Capture, *statements: str) -> int:
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
    "a row made anew": ["DELETE FROM {table}", "INSERT INTO {table} VALUES (1, '{own}')"],
}


@pytest.mark.parametrize("subject", list(Subject))
@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
def test_interference_stops_the_source_and_what_was_before_is_whole(
    database: Any, capture: Start, now: Now, subject: Subject, statements: list[str]
) -> None:
    database.execute(f"{TABLE}; CREATE TABLE other (id int PRIMARY KEY)")
    running = capture(**BY_TABLE)
    running.wait(write(running, 1, Mark.LOW))
    identity = running.config.identity
    beat, high = Beat(identity, 7).token(), Watermark(identity, COPY, 1, Mark.HIGH).token()
    own = high if subject is Subject.WATERMARK else beat
    names = {"own": own, "foreign": own.replace(identity, "c3" * 16)}
    made = [text.replace("{table}", str(subject.table)).replace("{name}", subject.table.name) for text in statements]
    for placeholder, token in names.items():
        made = [text.replace(f"{{{placeholder}}}", token) for text in made]
    xid = disturb(database, running, *made)
    error = failed(running)
    assert str(subject.table) in error.message
    assert f"by transaction {xid}, at " in error.message
    assert error.hint
    assert (ids(running), running.durable() < now()) == ([1], True)
    running.start()  # it is still in the stream
    assert failed(running).message == error.message
    assert ids(running) == [1]


@pytest.mark.parametrize("subject", list(Subject))
def test_a_malformed_message_stops_the_source(database: Any, capture: Start, subject: Subject) -> None:
    database.execute(TABLE)
    running = capture(**BY_MESSAGE)
    disturb(database, running, f"SELECT pg_logical_emit_message(true, '{subject.prefix}', 'hello')")
    assert subject.prefix in failed(running).message
    assert ids(running) == [1]


def test_a_message_outside_of_transactions_stops_the_source(database: Any, capture: Start) -> None:
    database.execute(TABLE)
    running = capture(**BY_MESSAGE)
    database.execute("INSERT INTO t VALUES (1, 'before')")
    database.execute("SELECT pg_logical_emit_message(false, 'penstock.watermark', 'hello')")
    database.execute("INSERT INTO t VALUES (2, 'after')")
    assert "penstock.watermark" in failed(running).message
    assert ids(running) == [1]


def until_sent(database: Any, lsn: Lsn) -> None:
    """Wait until all captures of a database were sent what is in the WAL, committed or not."""
    database.execute("SELECT pg_logical_emit_message(true, 'flushed', '')")
    sent = "SELECT count(*), min(sent_lsn)::text FROM pg_stat_replication WHERE application_name LIKE 'penstock %s%%'"
    query = sent % database.name

    def all_sent() -> bool:
        ((count, least),) = database.execute(query)
        return bool(count) and Lsn.parse(least) >= lsn

    until(all_sent, f"everything up to {lsn} to be sent")


def test_what_is_rolled_back_never_counts(database: Any, capture: Start, now: Now) -> None:
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
    assert [type(error) for error in other.transient] == [TransientError], "asked for as a whole"
    assert running.transient == []
    running.wait(write(running, 1, Mark.LOW))


@pytest.mark.parametrize("kind", list(Watermarks))
def test_interference_in_a_transaction_that_comes_in_blocks(database: Any, capture: Start, kind: Watermarks) -> None:
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
    assert "interference" in failed(running).message
    assert ids(running) == [10001, 10002]


@pytest.mark.parametrize("two_phase", [False, True])
def test_interference_in_a_prepared_transaction(database: Any, capture: Start, now: Now, two_phase: bool) -> None:
    database.needs(15, "a stream with prepared transactions")
    database.execute(TABLE)
    running = capture(two_phase=two_phase, **BY_TABLE)
    with database.connect() as session:
        session.execute("BEGIN; UPDATE dblog_meta.watermarks SET token = 'x'; PREPARE TRANSACTION 'bad'")
        if two_phase:
            assert "interference" in failed(running).message
        else:
            running.wait(now())
        session.execute("COMMIT PREPARED 'bad'")
    assert "interference" in failed(running).message


def test_two_sources_of_one_database_do_not_disturb_each_other(database: Any, capture: Start, now: Now) -> None:
    """Both see all messages; and one more may mark by table."""
    database.execute(TABLE)
    both = [capture(**BY_MESSAGE), capture(**BY_MESSAGE), capture(**BY_TABLE)]
    for number in range(1, 4):
        for mark in Mark:
            for running in both:
                write(running, number, mark, window=running.config.identity)
        database.execute(f"INSERT INTO t VALUES ({number}, 'a')")
    beaten = [running.durable() for running in both]
    for running in both:
        running.wait(now())
        assert ids(running) == [1, 2, 3]
    until(lambda: all(r.durable() > at for r, at in zip(both, beaten, strict=True)), "heartbeats")
    for running in both:
        running.stop()


def test_a_source_goes_on_past_what_was_accepted(database: Any, capture: Start, now: Now) -> None:
    database.execute(TABLE)
    running = capture(**BY_TABLE)
    running.wait(write(running, 1, Mark.LOW))
    constraint = "ALTER TABLE dblog_meta.watermarks DROP CONSTRAINT watermarks_id_check"
    disturb(database, running, constraint, "UPDATE dblog_meta.watermarks SET id = 2, token = 'x'")
    failed(running)
    running.config = running.config.accept_interference()
    running.start()
    running.wait(write(running, 1, Mark.LOW))
    running.wait(write(running, 1, Mark.HIGH))
    assert ids(running) == [1, 2, 3]
    database.execute("DELETE FROM dblog_meta.watermarks")
    assert "deleted" in failed(running).message
    database.execute("DROP TABLE dblog_meta.watermarks")
    with pytest.raises(DefiniteError, match="is gone"):
        running.config.accept_interference()


def test_messages_that_were_accepted(database: Any, capture: Start) -> None:
    database.execute(TABLE)
    running = capture()
    disturb(database, running, "SELECT pg_logical_emit_message(true, 'penstock.watermark', 'x')")
    failed(running)
    running.config = running.config.accept_interference()
    running.start()
    running.wait(write(running, 1, Mark.LOW))
    assert ids(running) == [1, 2, 3]


@pytest.mark.parametrize(
    "ddl",
    ["DROP TABLE dblog_meta.{}", 'ALTER PUBLICATION "{pub}" DROP TABLE dblog_meta.{}'],
    ids=["dropped", "left out"],
)
@pytest.mark.parametrize("subject", list(Subject))
def test_a_table_that_is_no_longer_published(
    database: Any, capture: Start, monkeypatch: pytest.MonkeyPatch, ddl: str, subject: Subject
) -> None:
    """Nothing of that is in the stream, and nobody would see who writes there."""
    monkeypatch.setattr(watch, "_SECONDS", 0.1)
    database.execute(TABLE)
    running = capture(**BY_TABLE)
    database.execute(ddl.format(f"{subject}s", pub=running.config.publication))
    assert f"dblog_meta.{subject}s" in failed(running).message


def test_a_heartbeat_that_finds_no_row_and_no_reason_in_the_stream(database: Any, capture: Start) -> None:
    """A publication of yours may publish no TRUNCATE."""
    database.execute(f"{TABLE}; CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert, update, delete')")
    yours = {"publication": "p", "publication_ownership": "user"}
    running = capture(**{**BY_TABLE, **yours, "heartbeat_interval": 0.1})
    database.execute("TRUNCATE dblog_meta.heartbeats")
    assert "dblog_meta.heartbeats is gone" in failed(running).message


def test_a_row_that_somebody_holds_costs_heartbeats_only(database: Any, capture: Start, now: Now) -> None:
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
