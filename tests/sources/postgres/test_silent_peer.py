"""A proxy keeps connections to Postgres open but forwards nothing: this is detected, reported, and retried."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.conftest import Database
from tests.proxy import Proxy
from tests.sources.postgres.capturing import Capture

from penstock.errors import TransientError
from penstock.sources.postgres import instance
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.replication import heartbeat, stream
from penstock.sources.postgres.replication.heartbeat import silent_since
from penstock.testing.waiting import until


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with closing(Proxy("127.0.0.1", database.server.port)) as made:
        yield made
        made.thaw()


def through(proxy: Proxy, database: Database, **settings: object) -> str:
    given: dict[str, Any] = {**conninfo_to_dict(database.url), "host": "127.0.0.1", "port": proxy.port, **settings}
    return make_conninfo("", **given)


@pytest.mark.any_version("a proxy stops the traffic, and the client detects it")
def test_capture_detects_a_silent_server_and_resumes(
    database: Database, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (stream, instance):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(stream, "_SILENCE_SPARE_SECONDS", 0.5)
    monkeypatch.setattr(heartbeat, "_SILENT_SECONDS", 1.5)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    url = through(proxy, database, options="-c wal_sender_timeout=2s", connect_timeout=2)
    capture = Capture(url, tmp_path / "log.db", "shop")
    state = tmp_path / "state"
    capture.folder = state
    try:
        capture.start()
        database.execute("INSERT INTO t VALUES (1)")
        until(lambda: len(capture.changes("t")) == 1, "the first row")
        assert capture.config.waiting(state) is None
        proxy.freeze()
        database.execute("INSERT INTO t VALUES (2)")
        until(lambda: capture.transient, "capture to detect it")
        assert "not answer" in capture.transient[0].message
        assert "no answer from 127.0.0.1" in str(capture.config.waiting(state))
        proxy.thaw()
        until(lambda: len(capture.changes("t")) == 2, "the row written meanwhile")
        until(lambda: capture.config.waiting(state) is None, "an answer of the server")
    finally:
        proxy.thaw()
        capture.stop()


def test_query_without_an_answer_closes_the_connection(database: Database, proxy: Proxy) -> None:
    with connect(through(proxy, database), answers_within=0.5) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        proxy.freeze()
        with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.5 s"):
            connection.execute("SELECT 2")
        assert connection.closed
    proxy.thaw()
    with (
        connect(through(proxy, database), answers_within=0.5) as connection,
        pytest.raises(psycopg.OperationalError, match="no answer within"),
    ):
        connection.execute("SELECT pg_sleep(30)")


def test_stream_that_does_not_start_is_a_transient_error(
    database: Database, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server never answers the request for the stream."""
    monkeypatch.setattr(stream, "ANSWER_SECONDS", 0.5)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = Capture(through(proxy, database), tmp_path / "log.db", "shop")
    start = stream.ReplicationStream._start

    def frozen(self: stream.ReplicationStream, options: stream.StreamOptions) -> None:
        proxy.freeze()
        start(self, options)

    monkeypatch.setattr(stream.ReplicationStream, "_start", frozen)
    with pytest.raises(TransientError, match="did not begin the stream within"):
        capture.instance.run(threading.Event(), lambda: None)


def test_tcp_keepalive_settings(database: Database) -> None:
    with connect(database.url) as connection:
        settings = {each.keyword.decode(): (each.val or b"").decode() for each in connection.pgconn.info}
    assert (settings["tcp_user_timeout"], settings["keepalives_interval"], settings["keepalives_count"]) == (
        "30000",
        "10",
        "3",
    )
    with connect(database.url + "?tcp_user_timeout=7000") as connection:
        settings = {each.keyword.decode(): (each.val or b"").decode() for each in connection.pgconn.info}
    assert settings["tcp_user_timeout"] == "7000"


def test_time_of_the_last_contact(tmp_path: Path) -> None:
    assert silent_since(tmp_path) is None, "there was no contact yet"
    (tmp_path / "heard").touch()
    assert silent_since(tmp_path) is None
    os.utime(tmp_path / "heard", (60, 60))
    assert silent_since(tmp_path) == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
