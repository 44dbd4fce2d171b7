"""Backup and restore: a restored home resumes, or stops with the reason. No change is lost silently."""

from __future__ import annotations

import os
import re
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

AHEAD = "the changes in between are lost"
"""A part of the error if the slot was confirmed beyond the end of the log."""

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


def start_and_fail(penstock: Penstock) -> None:
    """Start, and wait until the process ends with the exit code of a permanent error."""
    penstock.start()
    assert penstock.process is not None
    assert penstock.process.wait(PATIENCE) == 3, penstock.output.read_text()


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
    assert check.returncode == 1, check.stdout + check.stderr
    assert AHEAD in check.stdout
    start_and_fail(penstock_run)
    (source,) = open_home(penstock_run.home).status().sources
    assert source.state == "failed"
    assert AHEAD in str(source.error)
    rows = command(penstock_run.home, "sql", "SELECT count(*) AS accounts FROM demo.accounts")
    assert (rows.returncode, "50" in rows.stdout) == (0, True), rows.stdout + rows.stderr

    refused = command(penstock_run.home, "drop", "demo")
    assert refused.returncode == 3, "the slot may belong to a copy of this home"
    forced = command(penstock_run.home, "drop", "demo", "--force")
    assert forced.returncode == 0, forced.stderr
    for statement in re.findall(r"^-- ((?:SELECT|DROP) .*;)$", forced.stdout, re.MULTILINE):
        shop_and_bank.execute(statement)
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
