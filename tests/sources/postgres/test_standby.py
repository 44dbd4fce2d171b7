"""Logical decoding on a standby is supported with a publication that was created on the primary."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.sources.postgres.versions import needs, version_of

from penstock.embedded.postgres import EmbeddedPostgres, binaries
from penstock.errors import DefiniteError
from penstock.sources.postgres.connection import connect, connect_replication
from penstock.sources.postgres.replication.slot import find_slot
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.postgres import start_postgres


def make_standby(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Replace the data directory of a server by a copy of the primary, and start it as a standby."""
    standby.stop()
    fresh = standby.home / "copy"
    program = str(binaries() / "pg_basebackup")
    command = [program, "-d", primary.url, "-D", str(fresh), "-X", "stream", "-c", "fast"]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(standby.data)
    fresh.rename(standby.data)
    (standby.data / "standby.signal").touch()  # not by -R, which writes options of the newest libpq
    standby.settings["primary_conninfo"] = f"host=127.0.0.1 port={primary.port} user=postgres"
    for path in (standby.data, *standby.data.rglob("*")):
        standby._account.own(path)
    standby.start()


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """A primary and its standby."""
    with start_postgres(fsync=False) as primary, start_postgres(fsync=False) as standby:
        primary.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        make_standby(primary, standby)
        yield primary, standby


def source(server: EmbeddedPostgres, **options: Any) -> PostgresSource:
    return PostgresSource.from_url(server.url, "x", **options)


Servers = tuple[EmbeddedPostgres, EmbeddedPostgres]


def test_managed_publication_is_rejected_on_a_standby(servers: Servers) -> None:
    needs(servers[1], 16, "logical decoding on standbys")
    with pytest.raises(DefiniteError, match="a publication cannot be created on a standby") as caught:
        source(servers[1]).create_instances(1)
    assert "on the primary" in caught.value.hint


def test_standby_before_16_is_rejected(servers: Servers) -> None:
    if version_of(servers[1]) >= 16:
        pytest.skip("standbys support logical decoding since Postgres 16")
    with pytest.raises(DefiniteError, match="supports logical decoding on a primary only"):
        source(servers[1], publication="p", publication_ownership="user").create_instances(1)


def test_findings_on_a_standby(servers: Servers) -> None:
    needs(servers[1], 16, "logical decoding on standbys")
    found = source(servers[1], publication="p", publication_ownership="user").preflight()
    by_object = {finding.object: finding for finding in found.server}
    assert by_object["hot_standby_feedback"].level.value == "warning"
    assert "pg_log_standby_snapshot" in by_object["server"].hint
    found.require()
    needs(servers[1], 17, "failover slots")
    with pytest.raises(DefiniteError, match="failover slot"):
        source(servers[1], publication="p", publication_ownership="user", failover=True).create_instances(1)


def test_slot_on_a_standby(servers: Servers) -> None:
    needs(servers[1], 16, "logical decoding on standbys")
    primary, standby = servers
    stop = threading.Event()

    def log_running_transactions() -> None:
        while not stop.wait(0.2):
            primary.execute("SELECT pg_log_standby_snapshot()")

    busy = threading.Thread(target=log_running_transactions)
    busy.start()
    try:
        with connect(standby.url) as connection:
            assert connection.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchall() == [(1,)]
        config = source(standby, publication="p", publication_ownership="user").create_instances(1)[0].prepare()
    finally:
        stop.set()
        busy.join()
    with connect(standby.url) as connection:
        state = find_slot(connection, config.slot)
    assert state is not None
    assert config.start() > 0
    assert config.cleanup() == [f"slot {config.slot}"]
    assert primary.execute("SELECT 1 FROM pg_publication") != []


@pytest.mark.parametrize("opened", [connect, connect_replication])
def test_target_session_attrs_selects_the_host(servers: Servers, opened: Any) -> None:
    primary, standby = servers
    for wanted, server in (("primary", primary), ("standby", standby), ("prefer-standby", standby)):
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        with opened(f"postgresql://postgres@{hosts}/postgres?target_session_attrs={wanted}") as connection:
            assert connection.info.port == server.port
