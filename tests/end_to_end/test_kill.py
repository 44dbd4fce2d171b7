"""Kill -9 in the middle of load: of capture, of Spark's process, of both. Nothing is lost, nothing is there twice."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.catalog.states import TableState
from penstock.control.home import Home
from penstock.demo.load import Load
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock


def wait_for_copy(penstock_run: Penstock, seconds: float = 400) -> Home:
    """Wait until all tables are live."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        assert penstock_run.process is not None
        assert penstock_run.process.poll() is None, penstock_run.output.read_text()
        if (penstock_run.home / "penstock.db").exists():
            home = penstock.open(penstock_run.home)
            states = [table.state for source in home.status().sources for table in source.tables]
            if states and all(state == TableState.LIVE for state in states):
                return home
        time.sleep(0.3)
    pytest.fail("the first copy did not end: " + penstock_run.output.read_text())


def applied(home: Home) -> dict[str, str | None]:
    return {table.name: table.position for source in home.status().sources for table in source.tables}


def wait_for_progress(home: Home, seconds: float = 300) -> None:
    """Wait until apply has moved some table."""
    before, give_up = applied(home), time.monotonic() + seconds
    while applied(home) == before:
        assert time.monotonic() < give_up, "apply does not move"
        time.sleep(0.3)


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
        time.sleep(1)
        penstock_run.start()
        wait_for_progress(home)

        penstock_run.kill_capture()  # both at once
        penstock_run.kill()
        time.sleep(1)
        penstock_run.start()
        wait_for_progress(home)
        time.sleep(2)
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
        give_up = time.monotonic() + 300
        while "copying" not in penstock_run.output.read_text():
            assert time.monotonic() < give_up, penstock_run.output.read_text()
            time.sleep(0.02)
        penstock_run.kill()
        penstock_run.start()
        home = wait_for_copy(penstock_run)
    assert [verdict.table for verdict in home.verify(spark, "demo") if not verdict.equal] == []
    assert penstock_run.interrupt() == 0
