"""Up to which time the log is known to be complete."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.changelog.as_of import from_microseconds
from penstock.changelog.interface import Frontiers
from penstock.positions import Lsn
from penstock.sources.postgres.replication import heartbeat as clock_module
from penstock.sources.postgres.replication.heartbeat import ServerClock
from penstock.testing.waiting import until

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY)"


def server_time(database: Any) -> datetime:
    found: datetime = database.execute("SELECT clock_timestamp()")[0][0]
    return found.astimezone(UTC)


def frontiers(capture: Capture) -> Frontiers:
    with closing(capture.instance._log.reader()) as reader:
        return reader.frontiers()


def test_clock_reading_counts_once_the_log_has_reached_its_position(database: Any, now: Callable[[], Lsn]) -> None:
    clock, before = ServerClock(), now()
    database.execute(ACCOUNTS)
    assert clock.is_due()
    with database.connect() as connection:
        clock.read(connection)
    assert clock.complete_until(before) is None
    assert not clock.is_due(), "the first reading is still pending"
    passed = clock.complete_until(now())
    assert passed is not None
    assert from_microseconds(passed) < server_time(database)
    assert clock.complete_until(now()) is None, "it is reported once"


@pytest.mark.parametrize(
    ("insert", "end"), [("0/2000018", "0/2000000"), ("0/2000028", "0/2000000"), ("0/2000030", "0/2000030")]
)
def test_page_header_is_not_counted_as_a_record(insert: str, end: str) -> None:
    assert clock_module._end(Lsn.parse(insert), 8192) == Lsn.parse(end)


def test_idle_source_advances_in_time_without_growing_the_log(
    database: Any, capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "_SECONDS", 0.1)
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1)")
    queried_at = server_time(database)
    until(lambda: frontiers(running).passed > queried_at, "a time without commits")
    found = frontiers(running)
    assert found.committed_at is not None
    assert found.committed_at < queried_at, "a clock reading is not a commit"
    with closing(running.instance._log.reader()) as log, sqlite3.connect(running.log) as db:
        count, position = "SELECT count(*) FROM moment", log.position_at(queried_at)
        (rows,) = db.execute(count).fetchone()
        until(lambda: frontiers(running).passed > queried_at + timedelta(seconds=1), "a later time")
        assert db.execute(count).fetchone() == (rows,)
        database.execute("INSERT INTO accounts VALUES (2)")
        until(lambda: len(running.changes("accounts")) == 2, "the second row")
        assert len(running.changes("accounts", log.position_at(queried_at))) == 1
        assert log.position_at(queried_at) >= position
