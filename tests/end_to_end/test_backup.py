"""Backup and restore: a restored home resumes, or stops with the reason. No change is lost silently."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.demo.load import Load
from penstock.home import open_home
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1500)]


def wait_until_live(penstock: Penstock) -> None:
    def live() -> bool:
        penstock.require_running()
        sources = open_home(penstock.home).status().sources
        return bool(sources and sources[0].tables) and all(table.state == "live" for table in sources[0].tables)

    until(live, f"live tables: see {penstock.output}")


def wait_until_captured(penstock: Penstock, database: Database) -> None:
    end = Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    database.execute("SELECT pg_logical_emit_message(true, 'test', '')")
    until(lambda: open_home(penstock.home).frontiers("demo").durable >= end, f"the log to reach {end}")


def stop(penstock: Penstock) -> None:
    assert penstock.process is not None
    penstock.process.send_signal(signal.SIGTERM)
    assert penstock.process.wait(PATIENCE) == 0


def command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the home, with a Spark of its own if it needs one."""
    arguments = [sys.executable, "-m", "penstock.cli", *words, "--home", str(home)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=False)


def verify(penstock: Penstock) -> None:
    done = command(penstock.home, "verify", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 6


def change(database: Database, mark: int) -> None:
    database.execute(f"UPDATE bank.accounts SET balance = balance + {mark}")


def replace_home(backup: Path, home: Path) -> None:
    shutil.rmtree(home)
    shutil.copytree(backup, home, symlinks=True)


def test_a_stopped_home_is_copied_and_resumes_elsewhere(
    shop_and_bank: Database, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Nothing ran after the backup, so the slot still has all changes after it."""
    penstock_run.start()
    wait_until_live(penstock_run)
    stop(penstock_run)
    change(shop_and_bank, 1)
    shutil.copytree(penstock_run.home, tmp_path / "restored", symlinks=True)
    shutil.rmtree(penstock_run.home)
    penstock_run.home = tmp_path / "restored"
    penstock_run.start()
    wait_until_captured(penstock_run, shop_and_bank)
    verify(penstock_run)
    stop(penstock_run)


def test_a_backup_older_than_the_slot_stops_and_is_captured_again(
    shop_and_bank: Database, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Changes after the backup were confirmed, so the server no longer sends them."""
    penstock_run.start()
    wait_until_live(penstock_run)
    stop(penstock_run)
    backup = tmp_path / "backup"
    shutil.copytree(penstock_run.home, backup, symlinks=True)
    penstock_run.start()
    wait_until_live(penstock_run)
    change(shop_and_bank, 1)
    wait_until_captured(penstock_run, shop_and_bank)
    stop(penstock_run)
    replace_home(backup, penstock_run.home)

    check = command(penstock_run.home, "check", "demo")
    assert check.returncode == 1
    penstock_run.output.write_text("")
    penstock_run.start()
    assert penstock_run.process is not None
    assert penstock_run.process.wait(PATIENCE) == 3, "permanent error"
    (source,) = open_home(penstock_run.home).status().sources
    assert source.state == "failed"
    assert source.error is not None
    print(source.error, source.hint, check.stdout, penstock_run.output.read_text())
    rows = command(penstock_run.home, "sql", "SELECT count(*) AS accounts FROM demo.bank_accounts")
    print(rows.stdout, rows.stderr)

    assert command(penstock_run.home, "drop", "demo").returncode == 0
    penstock_run.start()
    wait_until_live(penstock_run)
    verify(penstock_run)
    stop(penstock_run)


def test_an_atomic_copy_of_a_running_home_resumes(
    shop_and_bank: Database, penstock_run: Penstock, tmp_path: Path
) -> None:
    """A snapshot of the volume, and then the machine is lost: all processes stand still during the copy, and end."""
    penstock_run.start()
    wait_until_live(penstock_run)
    with Load(shop_and_bank.url, rate=30):
        wait_until_captured(penstock_run, shop_and_bank)
        assert penstock_run.process is not None
        os.killpg(penstock_run.process.pid, signal.SIGSTOP)
        shutil.copytree(penstock_run.home, tmp_path / "copy", symlinks=True)
        os.killpg(penstock_run.process.pid, signal.SIGKILL)
        penstock_run.process.wait()
    until(lambda: penstock_run.capture_pid() is None, "the capture process to end")
    penstock_run.home = tmp_path / "copy"
    penstock_run.start()
    wait_until_live(penstock_run)
    wait_until_captured(penstock_run, shop_and_bank)
    verify(penstock_run)
    stop(penstock_run)
