"""Kill -9 in the middle of load: of capture, of Spark's process, of both. Nothing is lost, nothing is there twice."""

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


def wait_for_copy(penstock_run: Penstock) -> Home:
    """Wait until all tables are live."""

    def copied() -> Home | None:
        penstock_run.require_running()
        if not (penstock_run.home / "penstock.db").exists():
            return None
        home = penstock.open(penstock_run.home)
        states = [table.state for source in home.status().sources for table in source.tables]
        return home if states and all(state == TableState.LIVE for state in states) else None

    found = until(copied, f"the first copy: see {penstock_run.output}")
    assert found is not None
    return found


def applied(home: Home) -> dict[str, str | None]:
    return {table.name: table.position for source in home.status().sources for table in source.tables}


def wait_for_progress(home: Home) -> None:
    """Wait until apply has moved some table."""
    before = applied(home)
    until(lambda: applied(home) != before, "apply to move a table")


@pytest.mark.timeout(1500)
def test_killed_and_started_again_nothing_is_lost_or_doubled(
    penstock_run: Penstock, shop_and_bank: Database, spark: SparkSession
) -> None:
    with Load(shop_and_bank.url, rate=40):
        penstock_run.start()
        home = wait_for_copy(penstock_run)

        first = penstock_run.capture_pid()
        penstock_run.kill_capture()  # capture alone: its supervisor starts it again
        wait_for_progress(home)
        assert penstock_run.capture_pid() not in (None, first)

        assert penstock_run.kill_jvm() == 4, penstock_run.output.read_text()  # Spark's JVM
        assert "Start again; nothing is lost" in penstock_run.output.read_text()
        penstock_run.start()
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
def test_killed_during_the_first_copy_it_copies_again(
    penstock_run: Penstock, shop_and_bank: Database, spark: SparkSession
) -> None:
    with Load(shop_and_bank.url, rate=40):
        penstock_run.start()
        until(lambda: "copying" in penstock_run.output.read_text(), "the copy to begin")
        penstock_run.kill()
        penstock_run.start()
        home = wait_for_copy(penstock_run)
    assert [verdict.table for verdict in home.verify(spark, "demo") if not verdict.equal] == []
    assert penstock_run.interrupt() == 0


@pytest.mark.timeout(1500)
def test_a_jvm_that_is_killed_at_any_moment_is_a_loss_that_passes(
    penstock_run: Penstock, shop_and_bank: Database, spark: SparkSession
) -> None:
    """While it starts, at random moments of the first copy and of apply, and while all is stopped: never a defect."""
    chance = random.Random(18)
    with Load(shop_and_bank.url, rate=40):
        penstock_run.start()
        assert penstock_run.kill_jvm() == 4, penstock_run.output.read_text()
        for _ in range(2):
            before = penstock_run.output.read_text().count("for a snapshot")
            penstock_run.start()
            until(partial(penstock_run.has_said, "for a snapshot", before + 1), "the copy to begin")
            time.sleep(chance.uniform(0.0, 3.0))  # the moment shall be any
            assert penstock_run.kill_jvm() == 4, penstock_run.output.read_text()
        penstock_run.start()
        home = wait_for_copy(penstock_run)
        for _ in range(2):
            time.sleep(chance.uniform(0.0, 2.0))
            assert penstock_run.kill_jvm() == 4, penstock_run.output.read_text()
            penstock_run.start()
            wait_for_progress(home)
        assert penstock_run.process is not None
        pid = penstock_run.jvm_pid()
        assert pid is not None
        penstock_run.process.send_signal(signal.SIGINT)
        os.kill(pid, signal.SIGKILL)
        assert penstock_run.process.wait(PATIENCE) in (0, 4), penstock_run.output.read_text()
    said = penstock_run.output.read_text()
    assert "defect" not in said
    penstock_run.start()
    wait_for_copy(penstock_run)
    assert [verdict.table for verdict in home.verify(spark, "demo") if not verdict.equal] == []
    assert penstock_run.interrupt() == 0
