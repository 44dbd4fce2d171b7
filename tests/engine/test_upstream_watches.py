"""The status is read again and again over one connection to each server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import Database

from penstock.engine.upstream_watches import UpstreamWatches
from penstock.home import Home, open_home
from penstock.testing.waiting import until

SESSIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%pg_replication_slots%'
"""
BACKENDS = f"SELECT pid FROM ({SESSIONS.replace('count(*)', 'pid')}) s"


@pytest.fixture
def home(database: Database, tmp_path: Path) -> Iterator[Home]:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    opened = open_home(tmp_path / "home")
    opened.create(database.url, "shop")
    yield opened
    if "shop" in opened.names():
        opened.drop("shop")


def backends(database: Database) -> list[int]:
    return [pid for (pid,) in database.execute(BACKENDS)]


def test_the_connection_is_kept_and_closed_in_the_end(home: Home, database: Database) -> None:
    with closing(UpstreamWatches()) as watches:
        assert home.status(watches).sources[0].slot is not None
        first = backends(database)
        for _ in range(3):
            assert home.status(watches).sources[0].slot is not None
        assert len(first) == 1
        assert backends(database) == first
    until(lambda: backends(database) == [], "the end of the connection")


def test_a_lost_connection_is_opened_again(home: Home, database: Database) -> None:
    with closing(UpstreamWatches()) as watches:
        home.status(watches)
        (first,) = backends(database)
        database.execute(f"SELECT pg_terminate_backend({first})")
        assert home.status(watches).sources[0].slot is not None
        assert backends(database) != [first]


def test_a_source_that_was_dropped_is_not_watched(home: Home, database: Database) -> None:
    with closing(UpstreamWatches()) as watches:
        home.status(watches)
        home.drop("shop")
        assert home.status(watches).sources == []
        until(lambda: backends(database) == [], "the end of the connection")
