"""Connections: passwords are kept out of messages, and errors are classified as transient or permanent."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.sources.postgres.connection import connect, connect_replication, parse_url, place
from penstock.testing.postgres import start_postgres

SECRET = "hun.ter2"


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://me@db.example:5433/shop", "db.example:5433/shop"),
        ("postgres://db.example/shop?sslmode=require", "db.example:5432/shop"),
        ("host=db.example user=me dbname=shop", "db.example:5432/shop"),
        ("postgresql:///shop?host=/run/pg", "/run/pg:5432/shop"),
        ("postgresql://me@[::1]:5432/shop", "::1:5432/shop"),
        ("postgresql://a:1,b:2/shop", "a,b:1,2/shop"),
    ],
)
def test_url_is_converted_to_keywords(url: str, where: str) -> None:
    assert "://" not in parse_url(url)
    assert place(parse_url(url)) == where
    assert parse_url(parse_url(url)) == parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@db.example/shop",
        f"postgresql://db.example/shop?user=me&password={SECRET}",
        f"host=db.example password={SECRET}",
        f"host=db.example sslpassword='{SECRET}'",
    ],
)
def test_password_is_rejected_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match=r"db\.example") as caught:
        parse_url(url)
    assert "PGPASSWORD" in caught.value.hint
    assert SECRET not in "".join(traceback.format_exception(caught.value)).replace(url, "")


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "postgresql://me:hun.ter2%zz@db.example/shop",
        "postgresql://me:hun.ter2/@db.example:1/shop",
        "postgresql://me:x/hun.ter2@db.example/shop",
        "postgresql://me:123/hun.ter2@db.example/shop",
        "host=db.example password='hun.ter2",
        "host=db.example passwort=hun.ter2",
        "mysql://me:hun.ter2@db.example/shop",
        "postgresql://me:hun.ter2@[::1/shop",
    ],
)
def test_invalid_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "postgresql://user@host" in caught.value.hint
    reported = "".join(traceback.format_exception(caught.value)).split("connection.py")[-1]
    assert SECRET not in reported


def test_closed_port_is_a_transient_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(TransientError, match=rf"127\.0\.0\.1:{port}/shop") as caught:
        connect(f"postgresql://me@127.0.0.1:{port}/shop")
    assert caught.value.hint


def test_unknown_database_is_a_permanent_error(postgres_server: EmbeddedPostgres) -> None:
    for opened in (connect, connect_replication):
        with pytest.raises(DefiniteError, match="does not exist"):
            opened(postgres_server.url_for("nowhere"))


def test_session_settings_are_fixed(postgres_server: EmbeddedPostgres) -> None:
    url = postgres_server.url + "?options=-c%20work_mem%3D7MB"
    with connect(url, "penstock x") as connection:
        query = "SELECT current_setting(n) FROM unnest(%s::text[]) n"
        names = ["TimeZone", "extra_float_digits", "bytea_output", "client_encoding", "work_mem", "application_name"]
        shown = [row[0] for row in connection.execute(query, [names])]
        assert shown == ["UTC", "3", "hex", "UTF8", "7MB", "penstock x"]
        assert connection.execute("SELECT now()::text").fetchone() is not None


@pytest.fixture(scope="module")
def server_with_passwords() -> Iterator[EmbeddedPostgres]:
    """A server that requires a password of one role and rejects another role."""
    lines = [
        "host all,replication locked 127.0.0.1/32 scram-sha-256",
        "host all,replication barred 127.0.0.1/32 reject",
    ]
    with start_postgres(fsync=False, hba=lines) as server:
        server.execute(f"CREATE ROLE locked LOGIN REPLICATION PASSWORD '{SECRET}'; CREATE ROLE barred LOGIN")
        yield server


@pytest.fixture
def no_password(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    yield monkeypatch


def test_correct_password(server_with_passwords: EmbeddedPostgres, no_password: pytest.MonkeyPatch) -> None:
    no_password.setenv("PGPASSWORD", SECRET)
    connect(server_with_passwords.url_for("postgres", "locked")).close()
    connect_replication(server_with_passwords.url_for("postgres", "locked")).close()


def test_wrong_password(server_with_passwords: EmbeddedPostgres, no_password: pytest.MonkeyPatch) -> None:
    no_password.setenv("PGPASSWORD", "mistaken")
    with pytest.raises(DefiniteError, match="refused the login") as caught:
        connect(server_with_passwords.url_for("postgres", "locked"))
    assert "PGPASSWORD" in caught.value.hint
    assert "mistaken" not in str(caught.value)


@pytest.mark.usefixtures("no_password")
def test_missing_password(server_with_passwords: EmbeddedPostgres) -> None:
    with pytest.raises(DefiniteError, match="refused the login") as caught:
        connect(server_with_passwords.url_for("postgres", "locked"))
    assert "PGPASSWORD" in caught.value.hint


def test_connection_rejected_by_pg_hba(server_with_passwords: EmbeddedPostgres) -> None:
    with pytest.raises(DefiniteError, match="refused the connection") as caught:
        connect(server_with_passwords.url_for("postgres", "barred"))
    assert "pg_hba.conf" in caught.value.hint


def test_role_without_the_replication_attribute(database: Any) -> None:
    role = f"{database.name}_role"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(DefiniteError, match="refused replication") as caught:
            connect_replication(database.server.url_for(database.name, role))
    finally:
        database.execute(f"DROP ROLE {role}")
    assert f'ALTER ROLE "{role}" REPLICATION' in caught.value.hint


def test_stopped_or_full_server_is_a_transient_error() -> None:
    with start_postgres(fsync=False) as server:
        server.stop()
        with pytest.raises(TransientError):
            connect(server.url)
        server.restart(max_connections="10", superuser_reserved_connections="3", max_wal_senders="2")
        server.execute("CREATE ROLE plain LOGIN")
        connections = []
        with pytest.raises(TransientError, match="slots"):
            for _ in range(20):
                connections.append(connect(server.url_for("postgres", "plain")))
        for connection in connections:
            connection.close()
