"""Verify: live tables against Postgres, row by row, at one named position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from pyspark.sql import SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.control.live import Live
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.slot import export_snapshot
from penstock.sources.postgres.spec import PostgresInstanceConfig, PostgresSource
from penstock.spark.boundary import delivering
from penstock.tables.compare import Differences, differences
from penstock.tables.initial_copy import upstream_rows

__all__ = ["Verdict", "verify_source", "wait_for"]

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Verdict:
    """The comparison of one table with Postgres at a position."""

    table: str
    position: Lsn
    differences: Differences

    @property
    def equal(self) -> bool:
        """Whether not one row differs."""
        return self.differences.count == 0


def verify_source(
    log: ChangeLog,
    spark: SparkSession,
    source: PostgresSource,
    instance: PostgresInstanceConfig,
    live_at: Callable[[Lsn], Live],
) -> list[Verdict]:
    """Compare every captured table at the position of one exported snapshot."""
    with export_snapshot(instance.connection) as snapshot, delivering():
        wait_for(log, instance.source, snapshot.lsn)
        live = live_at(snapshot.lsn)
        verdicts = []
        found = source.tables_at(snapshot.name)
        for table in instance.tables:
            name = f"{instance.source}.{table.name}"
            captured = _known(table, found.get(table.name), live.table(name).columns)
            rows = upstream_rows(spark, instance.connection, snapshot, captured, spark.sparkContext.defaultParallelism)
            differing = differences(rows, live.table(name), captured.key)
            verdicts.append(Verdict(str(captured.name), snapshot.lsn, differing))
    return verdicts


def _known(table: CapturedTable, found: CapturedTable | None, columns: Sequence[str]) -> CapturedTable:
    """Return the table with the columns that it has here: a new one comes with the first change after it."""
    now = table.as_found(found)
    if isinstance(now, str):
        message = f"{table.name} cannot be compared: {now}"
        raise DefiniteError(message, "Capture it anew with RETRY TABLE.")
    return now.model_copy(update={"columns": now.columns[: len(columns)]})


def wait_for(log: ChangeLog, source: str, position: Lsn, seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait until the log holds everything up to a position."""
    with closing(log.reader()) as reader:
        if reader.wait(Lsn(position - 1), seconds).durable < position:
            message = f"the log of {source} did not reach {position} in {seconds:.0f} s"
            raise TransientError(message, "Is its capture running?")
