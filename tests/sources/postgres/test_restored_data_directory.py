"""An older data directory is restored: same system identifier and timeline, another history at the same LSNs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until

TABLES = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint); CREATE TABLE others (body text)"


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with start_postgres() as started:
        started.execute(TABLES)
        yield started


@pytest.fixture
def capture(server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Capture]:
    made = Capture(server.url, tmp_path / "log.db", "shop", tables=("public.accounts",))
    yield made
    made.failure = None
    made.stop()


def wal_end(server: EmbeddedPostgres) -> Lsn:
    return Lsn.parse(server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


class Backup:
    """A copy of the data directory, made while the server is stopped."""

    def __init__(self, server: EmbeddedPostgres, folder: Path) -> None:
        self._server, self._folder = server, folder / "backup"
        server.stop()
        shutil.copytree(server.data, self._folder, copy_function=shutil.copy2)
        self._owner = (server.data.stat().st_uid, server.data.stat().st_gid)
        server.start()

    def restore(self) -> None:
        self._server.stop("immediate")
        shutil.rmtree(self._server.data)
        shutil.copytree(self._folder, self._server.data)
        for path in (self._server.data, *self._server.data.rglob("*")):
            shutil.chown(path, *self._owner)
        self._server.start()


def write(server: EmbeddedPostgres, first: int, last: int) -> None:
    server.execute(f"INSERT INTO accounts SELECT n, 0 FROM generate_series({first}, {last}) n")


def write_others(server: EmbeddedPostgres, upto: Lsn) -> None:
    """Make the WAL grow beyond a position, without a change of a captured table."""
    while wal_end(server) <= upto:
        server.execute("INSERT INTO others SELECT repeat('x', 100) FROM generate_series(1, 1000)")


def capture_all(server: EmbeddedPostgres, capture: Capture) -> None:
    """Capture until the log is complete and the slot is confirmed up to its end; then stop."""
    capture.start()
    capture.wait(wal_end(server))
    slot = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
    until(lambda: Lsn.parse(server.execute(slot)[0][0]) >= capture.durable(), "the slot to be confirmed")
    capture.stop()


def permanent_error(capture: Capture) -> DefiniteError:
    capture.start()
    until(lambda: capture.failure is not None, "capture to stop")
    with pytest.raises(DefiniteError) as caught:
        capture.stop()
    assert "another history" in caught.value.message
    assert "penstock drop shop" in caught.value.hint
    return caught.value


def test_restored_wal_ends_before_the_log(server: EmbeddedPostgres, capture: Capture, tmp_path: Path) -> None:
    write(server, 1, 10)
    capture_all(server, capture)
    backup = Backup(server, tmp_path)
    write(server, 11, 20)
    write_others(server, Lsn(wal_end(server) + 100_000))
    capture_all(server, capture)
    backup.restore()
    assert "its WAL ends at" in permanent_error(capture).message
    source = PostgresSource.from_url(server.url, "shop", tables=("public.accounts",))
    findings = source.check(capture.config, capture.durable())
    assert not findings.ready
    assert any("its WAL ends at" in finding.why for finding in findings.findings)


@pytest.mark.parametrize(
    "early", [pytest.param(False, id="beyond the log"), pytest.param(True, id="at once", marks=pytest.mark.deep)]
)
def test_restored_wal_has_grown_past_the_log(
    server: EmbeddedPostgres, capture: Capture, tmp_path: Path, early: bool
) -> None:
    """The server lacks the last transaction of the log, also if no captured table changed before the end of the log."""
    write(server, 1, 10)
    capture_all(server, capture)
    backup = Backup(server, tmp_path)
    write(server, 11, 20)
    capture_all(server, capture)
    upto = capture.durable()
    backup.restore()
    if early:
        write(server, 101, 110)
    write_others(server, upto)
    write(server, 201, 210)
    for _ in range(2):  # the error stays at each start: nothing was confirmed
        permanent_error(capture)
    assert [change["after"]["id"] for change in capture.changes("accounts")] == [*range(1, 21)]


def test_new_transactions_where_the_log_has_none(server: EmbeddedPostgres, capture: Capture, tmp_path: Path) -> None:
    """The lost changes affect no captured table; but new changes at the same LSNs would be dropped as duplicates."""
    write(server, 1, 10)
    capture_all(server, capture)
    backup = Backup(server, tmp_path)
    write_others(server, Lsn(wal_end(server) + 500_000))
    capture_all(server, capture)
    upto = capture.durable()
    backup.restore()
    write(server, 11, 20)
    write_others(server, upto)
    assert "the log, which reaches further, does not have" in permanent_error(capture).message


@pytest.mark.deep
def test_restore_that_affects_no_captured_table_is_accepted(
    server: EmbeddedPostgres, capture: Capture, tmp_path: Path
) -> None:
    """Only other tables have lost changes, and captured tables were written only after the WAL had grown."""
    write(server, 1, 10)
    capture_all(server, capture)
    backup = Backup(server, tmp_path)
    write_others(server, Lsn(wal_end(server) + 100_000))
    capture_all(server, capture)
    upto = capture.durable()
    backup.restore()
    write_others(server, upto)
    write(server, 11, 20)
    capture_all(server, capture)
    assert [change["after"]["id"] for change in capture.changes("accounts")] == [*range(1, 21)]


def test_capture_resumes_after_a_crash_of_the_server(server: EmbeddedPostgres, capture: Capture) -> None:
    """A slot is stored at checkpoints: after a crash the server resends many transactions, and capture resumes."""
    for first in range(1, 100, 10):
        write(server, first, first + 9)
    capture_all(server, capture)
    before = capture.durable()
    server.kill()
    server.start()
    (confirmed,) = server.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")[0]
    assert Lsn.parse(confirmed) < before, "the server has transactions to send again"
    write(server, 101, 110)
    capture_all(server, capture)
    assert [change["after"]["id"] for change in capture.changes("accounts")] == [*range(1, 111)]
