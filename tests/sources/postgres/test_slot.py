"""The contract of replication slots, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.versions import needs, version_of

from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect, connect_replication
from penstock.sources.postgres.replication.slot import (
    SlotFlags,
    SlotInUseError,
    SlotState,
    check_slot,
    create_slot,
    drop_slot,
    find_slot,
    slot_problem,
)
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.postgres import start_postgres

FAR = Lsn.parse("FFFF/0")


@pytest.fixture
def replication(database: Any) -> Iterator[psycopg.Connection[Any]]:
    with connect_replication(database.url, "the other penstock") as connection:
        yield connection


def find(database: Any, name: str) -> SlotState:
    with connect(database.url) as connection:
        found = find_slot(connection, name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "flags",
    [
        SlotFlags(),
        SlotFlags(temporary=True),
        SlotFlags(two_phase=True),
        SlotFlags(failover=True),
        SlotFlags(two_phase=True, failover=True),
    ],
    ids=str,
)
def test_slot_has_the_requested_flags(database: Any, replication: psycopg.Connection[Any], flags: SlotFlags) -> None:
    needs(database, 17 if flags.failover else 14, "failover slots")
    name = database.name
    start = create_slot(
        replication, name, temporary=flags.temporary, two_phase=flags.two_phase, failover=flags.failover
    )
    state = find(database, name)
    assert (state.flags, state.here, state.invalidated) == (flags, True, None)
    assert state.confirmed == start
    assert slot_problem(state, flags) is None
    other = SlotFlags(not flags.temporary, flags.two_phase, flags.failover)
    assert "the property temporary" in str(slot_problem(state, other))


def test_physical_slot_is_rejected(database: Any) -> None:
    name = database.name
    database.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        with pytest.raises(DefiniteError, match="not a logical slot with plugin pgoutput"):
            check_slot(find(database, name), name, "shop", FAR)
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_slot_of_another_database_is_rejected(database: Any) -> None:
    name = database.name
    database.server.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        state = find(database, name)
        assert not state.here
        with pytest.raises(DefiniteError, match='another database, "postgres"'):
            check_slot(state, name, "shop", FAR)
    finally:
        database.server.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_missing_slot_and_slot_ahead_of_the_log_are_rejected(
    database: Any, replication: psycopg.Connection[Any]
) -> None:
    name = database.name
    with pytest.raises(DefiniteError, match="no longer exists") as caught:
        check_slot(None, name, "shop", FAR)
    assert "penstock drop shop" in caught.value.hint
    start = create_slot(replication, name)
    check_slot(find(database, name), name, "shop", start)
    with pytest.raises(DefiniteError, match="the changes in between are lost"):
        check_slot(find(database, name), name, "shop", Lsn(start - 1))


def test_error_names_the_session_that_uses_the_slot(database: Any, replication: psycopg.Connection[Any]) -> None:
    name = database.name
    create_slot(replication, name, temporary=True)
    pid = replication.pgconn.backend_pid
    with pytest.raises(SlotInUseError, match=rf"pid {pid} on the server, application the other penstock, from 127"):
        check_slot(find(database, name), name, "shop", FAR)
    with connect(database.url) as connection, pytest.raises(SlotInUseError, match="application the other penstock"):
        drop_slot(connection, name)


def test_second_deployment_is_rejected(database: Any, replication: psycopg.Connection[Any]) -> None:
    """Preflight names the session that uses the slot, before anything is created."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    create_slot(replication, f"penstock_{database.name}", temporary=True)
    with pytest.raises(DefiniteError, match=rf"in use by pid {replication.pgconn.backend_pid}.*the other penstock"):
        PostgresSource.from_url(database.url, database.name).create_instances(1)


def test_invalidated_slot_is_rejected() -> None:
    """The server removes its WAL, because of a small ``max_slot_wal_keep_size``."""
    with start_postgres(fsync=False, settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with connect_replication(server.url) as replication:
            create_slot(replication, "s")
        for _ in range(4):
            server.execute("INSERT INTO t SELECT 1, repeat('x', 5000); DELETE FROM t; SELECT pg_switch_wal()")
        server.execute("CHECKPOINT")
        with connect(server.url) as connection:
            state = find_slot(connection, "s")
            assert state is not None
            assert state.wal_status == "lost"
            assert state.invalidated == ("wal_removed" if version_of(server) >= 16 else None)
            with pytest.raises(DefiniteError, match='invalidated replication slot "s'):
                check_slot(state, "s", "shop", FAR)
            found = PostgresSource.from_url(server.url, "x").preflight().server
            assert [f.level.value for f in found if f.object == "max_slot_wal_keep_size"] == ["warning"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("", 'replication slot "mine" does not exist'),
        ("SELECT pg_create_logical_replication_slot('mine', 'pgoutput', false, true)", "has the property two_phase"),
        ("SELECT pg_create_physical_replication_slot('mine')", "not a logical slot"),
    ],
)
def test_user_slot_must_be_suitable(database: Any, make: str, why: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    if make:
        database.execute(make)
    user_owned = {"publication": "p", "publication_ownership": "user", "slot": "mine", "slot_ownership": "user"}
    try:
        with pytest.raises(DefiniteError, match=why):
            PostgresSource.from_url(database.url, database.name, **user_owned).create_instances(1)
    finally:
        if make:
            database.execute("SELECT pg_drop_replication_slot('mine')")
