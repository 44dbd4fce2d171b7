"""Statements of ours, carried out: each is one call of the home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.control.answer import Answer, repaired, show_repairs, show_sources
from penstock.control.lock import holder
from penstock.errors import UsageError
from penstock.sources.postgres.options import PostgresKind
from penstock.sql.grammar import parse
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    DropTable,
    Repairing,
    RetryTable,
    ShowRepairs,
    ShowSinks,
    ShowSources,
    Verify,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.control.home import Home

__all__ = ["obey"]

_KINDS = {PostgresKind.NAME: PostgresKind}


def obey(home: Home, statement: str, spark: Callable[[], SparkSession]) -> Answer | None:
    """Carry a statement out; None for a query."""
    match parse(statement, _KINDS):
        case None:
            return None
        case ShowSources():
            return show_sources(home.status())
        case ShowRepairs():
            return show_repairs(home.repairs())
        case ShowSinks():
            return Answer("there are no sinks")
        case AddTable(source, table):
            home.add_table(source, table)
            return _noted(home, f"{table} is added to {source} and copied")
        case DropTable(source, table):
            home.drop_table(source, table)
            return _noted(home, f"{table} is dropped from {source}")
        case RetryTable(source, table):
            home.retry(source, table)
            return _noted(home, f"{table} is captured anew and copied afresh")
        case AcceptInterference(source):
            home.accept_interference(source)
            return Answer(f"{source} goes on at the next penstock run, behind what others wrote there")
        case Repairing() as asked:
            return _repair(home, asked, spark)
        case Verify(source, wanted):
            return _verify(home, source, home.tables(source, [wanted] if wanted else ()), spark())
        case _:
            message = "this version does not carry out this statement"
            raise UsageError(message, "Create sources with penstock run URL, drop them with penstock drop.")


def _noted(home: Home, what: str) -> Answer:
    """Say when a wish is carried out."""
    pid = holder(home.path)
    return Answer(f"{what}: {f'now, by the Penstock that runs (pid {pid})' if pid else 'at the next penstock run'}")


def _repair(home: Home, asked: Repairing, spark: Callable[[], SparkSession]) -> Answer:
    everything = asked.keys is None and asked.where is None
    started = None if home.is_run() else spark()
    done = home.repair(
        asked.source, asked.table, keys=asked.keys, where=asked.where, everything=everything, spark=started
    )
    return Answer(repaired(done))


def _verify(home: Home, source: str, tables: Sequence[str], spark: SparkSession) -> Answer:
    from penstock.control.verify_report import verify_answer, verify_report

    with home.run_if_idle(spark):
        verdicts = home.verify(spark, source, tables)
    return verify_answer(verify_report(source, verdicts))
