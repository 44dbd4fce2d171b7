"""Which moments capture knows to have passed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.changelog.as_of import exactly
from penstock.changelog.interface import Frontiers
from penstock.positions import Lsn
from penstock.sources.postgres import heartbeat as clock_module
from penstock.sources.postgres.heartbeat import ServerClock
from penstock.testing.waiting import until

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY)"


def server_time(database: Any) -> datetime:
    found: datetime = database.execute("SELECT clock_timestamp()")[0][0]
    return found.astimezone(UTC)


def frontiers(capture: Capture) -> Frontiers:
    with closing(capture.instance._log.reader()) as reader:
        return reader.frontiers()


def test_a_clock_counts_when_the_log_has_come_that_far(database: Any, now: Callable[[], Lsn]) -> None:
    clock, before = ServerClock(), now()
    database.execute(ACCOUNTS)
    assert clock.due()
    with database.connect() as connection:
        clock.ask(connection)
    assert clock.passed(before) is None
    assert not clock.due(), "the first question is still open"
    passed = clock.passed(now())
    assert passed is not None
    assert exactly(passed) < server_time(database)
    assert clock.passed(now()) is None, "it is told once"


@pytest.mark.parametrize(
    ("insert", "end"), [("0/2000018", "0/2000000"), ("0/2000028", "0/2000000"), ("0/2000030", "0/2000030")]
)
def test_the_header_of_a_page_is_no_record(insert: str, end: str) -> None:
    assert clock_module._end(Lsn.parse(insert), 8192) == Lsn.parse(end)


def test_an_idle_source_passes_moments_without_growing(
    database: Any, capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "_SECONDS", 0.1)
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1)")
    asked = server_time(database)
    until(lambda: frontiers(running).passed > asked, "a moment that nothing happened at")
    found = frontiers(running)
    assert found.committed_at is not None
    assert found.committed_at < asked, "the clock is no commit"
    with closing(running.instance._log.reader()) as log, sqlite3.connect(running.log) as db:
        count, position = "SELECT count(*) FROM moment", log.position_at(asked)
        (rows,) = db.execute(count).fetchone()
        until(lambda: frontiers(running).passed > asked + timedelta(seconds=1), "a later moment")
        assert db.execute(count).fetchone() == (rows,)
        database.execute("INSERT INTO accounts VALUES (2)")
        until(lambda: len(running.changes("accounts")) == 2, "the second row")
        assert len(running.changes("accounts", log.position_at(asked))) == 1
        assert log.position_at(asked) >= position
