"""Shutdown of a running home: it does not wait for long Spark jobs."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.engine.shop import Shop, running_shop

from penstock.changelog.interface import ChangeLog
from penstock.engine import table_loops
from penstock.engine.status_document import TableStatus
from penstock.layout import base_path
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.spark.jobs import SparkJobs
from penstock.tables.interface import NetChange
from penstock.tables.spark_tables import SparkTables
from penstock.testing.waiting import PATIENCE, until

FOR_HOURS = "(SELECT count(*) FROM range(0, 1000000000000000, 1, 1)) > 0"
SETUP = "CREATE TABLE slow (id int PRIMARY KEY); CREATE TABLE quick (id int PRIMARY KEY)"


def running_jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def test_jobs_are_cancelled_by_tag(spark: SparkSession) -> None:
    jobs, other = SparkJobs(spark, "penstock-test-1"), SparkJobs(spark, "penstock-test-2")
    outcomes: list[BaseException] = []

    def work() -> None:
        with jobs.tagged():
            try:
                spark.range(1).where(FOR_HOURS).collect()
            except (PySparkException, Py4JError) as error:
                outcomes.append(error)
        outcomes.append(ValueError(spark.range(3).count()))

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: running_jobs(spark), "the job to run")
    other.cancel()
    assert running_jobs(spark)
    jobs.cancel()
    thread.join(PATIENCE)
    assert len(outcomes) == 2, "the job was cancelled, and the thread continues"
    assert str(outcomes[1]) == "3"


class SlowTables(SparkTables):
    """Takes hours to apply changes of the table `slow`."""

    def net_change(self, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> NetChange | None:
        """Fold a range; for the table `slow`, practically without end."""
        change = super().net_change(log, schema, after, upto)
        if change is None or schema.table.name != "slow":
            return change
        net: DataFrame = change.net
        return NetChange(net.where(F.expr(FOR_HOURS)), change.contents)


@pytest.mark.deep
def test_slow_table_blocks_neither_other_tables_nor_shutdown(
    database: Any, tmp_path: Path, spark: SparkSession, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_loops, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr("penstock.engine.work_rounds._LONG_SECONDS", 0.2)
    with running_shop(tmp_path / "home", database, SlowTables(spark), SETUP) as shop:
        database.execute("INSERT INTO slow VALUES (1)")
        until(lambda: running_jobs(spark), "apply of the slow table")
        for number in range(2):  # each is applied in its own round, while `slow` is still being applied
            database.execute(f"INSERT INTO quick VALUES ({number})")
            until(partial(is_in_base, shop, "quick", number + 1), "apply of quick")
        assert running_jobs(spark)
        assert status_of(shop, "slow").behind == 1
    assert not running_jobs(spark)
    slow = status_of(shop, "slow")
    assert (slow.state, slow.error) == ("live", None), "a cancelled job is not an error of its table"
    with shop.home.run(spark):
        until(lambda: status_of(shop, "slow").behind == 0, "apply of the slow table to resume")
        assert shop.equal()


def status_of(shop: Shop, table: str) -> TableStatus:
    return next(found for found in shop.home.status().sources[0].tables if found.upstream == f"public.{table}")


def is_in_base(shop: Shop, table: str, rows: int) -> bool:
    path = base_path(shop.home.path, "shop", table).absolute()
    return shop.spark.read.format("delta").load(str(path)).count() == rows
