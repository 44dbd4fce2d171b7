"""kill -9 under load: of capture, of the Spark process, of both. No row is lost or duplicated."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.catalog.states import TableState
from penstock.demo.load import Load
from penstock.home import Home
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock

pytestmark = pytest.mark.deep

KILLS = int(os.environ.get("PENSTOCK_JVM_KILLS", "6"))
THREE_TABLES = ("--table=bank.accounts", "--table=bank.transfers", "--table=shop.customers")
"""Enough for tests about the process that is killed; `test_kills_lose_and_duplicate_nothing` captures all six."""


def wait_for_snapshot(penstock_run: Penstock) -> Home:
    """Wait until all tables are live."""

    def live_home() -> Home | None:
        penstock_run.require_running()
        if not (penstock_run.home / "penstock.db").exists():
            return None
        home = penstock.open(penstock_run.home)
        states = [table.state for source in home.status().sources for table in source.tables]
        return home if states and all(state == TableState.LIVE for state in states) else None

    found = until(live_home, f"the initial snapshot: see {penstock_run.output}")
    assert found is not None
    return found


def applied_positions(home: Home) -> dict[str, str | None]:
    return {table.name: table.position for source in home.status().sources for table in source.tables}


def wait_for_progress(home: Home) -> None:
    """Wait until apply has moved some table."""
    before = applied_positions(home)
    until(lambda: applied_positions(home) != before, "apply to advance a table")


@pytest.mark.timeout(1500)
def test_kills_lose_and_duplicate_nothing(penstock_run: Penstock, shop_and_bank: Database, spark: SparkSession) -> None:
    with Load(shop_and_bank.url, rate=40):
        penstock_run.start()
        home = wait_for_snapshot(penstock_run)

        first = penstock_run.capture_pid()
        penstock_run.kill_capture()  # only capture: its supervisor restarts it
        wait_for_progress(home)
        assert penstock_run.capture_pid() not in (None, first)

        penstock_run.kill_jvm()  # Spark's JVM: it is restarted, too
        wait_for_progress(home)

        penstock_run.kill()  # the process that drives Spark: JVM and capture end with it
        until(lambda: penstock_run.capture_pid() is None, "the end of capture")
        penstock_run.start()
        wait_for_progress(home)

        penstock_run.kill_capture()  # both at once
        penstock_run.kill()
        until(lambda: penstock_run.capture_pid() is None, "the end of capture")
        penstock_run.start()
        wait_for_progress(home)
    verdicts = home.verify(spark, "demo")
    assert [verdict.table for verdict in verdicts if not verdict.equal] == []
    assert sum(v.differences.rows_compared for v in verdicts if v.differences is not None) > 1000
    assert penstock_run.interrupt() == 0


@pytest.mark.timeout(1200)
def test_kill_during_the_initial_snapshot_repeats_it(
    penstock_run: Penstock, shop_and_bank: Database, spark: SparkSession
) -> None:
    penstock_run.options = THREE_TABLES
    with Load(shop_and_bank.url, rate=40):
        penstock_run.start()
        until(lambda: "copying" in penstock_run.output.read_text(), "the snapshot to start")
        penstock_run.kill()
        penstock_run.start()
        home = wait_for_snapshot(penstock_run)
    assert [verdict.table for verdict in home.verify(spark, "demo") if not verdict.equal] == []
    assert penstock_run.interrupt() == 0


@pytest.mark.timeout(3600)
def test_run_survives_kills_of_the_jvm_and_of_capture(
    penstock_run: Penstock, shop_and_bank: Database, spark: SparkSession
) -> None:
    """The JVM is killed during its start, and at random times of snapshot and apply; capture, too, now and then.

    `penstock run` stays, capture is not restarted because of Spark, no error is shown as a defect, and all rows are
    equal in the end. ``PENSTOCK_JVM_KILLS`` is the number of kills.
    """
    rng = random.Random(18)
    penstock_run.options = THREE_TABLES
    with Load(shop_and_bank.url, rate=40):
        penstock_run.start()
        penstock_run.kill_jvm()  # during the first start
        home = wait_for_snapshot(penstock_run)
        for kill in range(1, KILLS):
            when = rng.random()
            if when < 0.6:  # while it merges
                wait_for_progress(home)
                time.sleep(rng.uniform(0.0, 2.0))
            elif when < 0.8:  # soon after it has started; else during the start
                until(partial(penstock_run.is_in_state, "running"), "Spark")
                time.sleep(rng.uniform(0.0, 5.0))
            capture = penstock_run.capture_pid()
            if kill % 4 == 0:
                penstock_run.kill_capture()
                until(lambda before=capture: penstock_run.capture_pid() not in (None, before), "capture")  # type: ignore[misc]
                capture = penstock_run.capture_pid()
            penstock_run.kill_jvm()
            assert penstock_run.capture_pid() == capture
        wait_for_progress(home)
    process = home.status().process
    assert process is not None
    assert process.restarts == KILLS
    assert [verdict.table for verdict in home.verify(spark, "demo") if not verdict.equal] == []
    pid = until(penstock_run.jvm_pid, "Spark's JVM")
    assert penstock_run.process is not None and pid is not None
    penstock_run.process.send_signal(signal.SIGINT)
    os.kill(pid, signal.SIGKILL)  # while it stops
    assert penstock_run.process.wait(PATIENCE) == 0, penstock_run.output.read_text()
    output = penstock_run.output.read_text()
    assert "defect" not in output
    assert "Traceback" not in output
