"""``penstock verify``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.options import DebugOption, HomeOption, JsonOption
from penstock.cli.spark_session import spark_when_needed, waiting
from penstock.engine.verify import VerifyRepair, VerifyReport, VerifyTable, verify_report
from penstock.errors import DefiniteError, with_hint
from penstock.home import Home, open_existing

if TYPE_CHECKING:
    from penstock.engine.verify import Verdict

__all__ = ["draw", "verify"]

_MAX_SHOWN = 20
_MAX_REPAIRED = 100_000
"""The maximum number of keys per table that one command repairs."""
_COLORS = {"equal": "green", "different": "red", "not compared": "yellow"}


def verify(
    source: Annotated[str, typer.Argument(help="The name of the source.")],
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables of the source, as schema.table. Default: all.")
    ] = None,
    as_json: JsonOption = False,
    exact: Annotated[bool, typer.Option("--exact", help="Compare all rows instead of hashes first. Slower.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair the rows that differ, while capture continues, and compare again.")
    ] = False,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Compare live tables with Postgres, row by row, all of them at one position.

    If `penstock run` is not active, this command captures until it finishes. Exit code 1: rows differ; their keys are
    shown. Exit code 3: no rows differ, but a table could not be compared.

    Example: penstock verify shop public.orders
    """
    opened = open_existing(home)
    opened.tables(source, tables or ())  # report unknown names before Spark starts
    with spark_when_needed() as spark, waiting("waiting for a snapshot") as progress, opened.run_if_idle(spark()):
        report = _verify(opened, spark(), source, tables or (), exact, repair, progress)
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        draw(Console(highlight=False, soft_wrap=True), report)
    if not report.equal:
        raise typer.Exit(1 if report.differs else DefiniteError.exit_code)


def _verify(
    home: Home,
    spark: SparkSession,
    source: str,
    tables: Sequence[str],
    exact: bool,
    repair: bool,
    progress: Callable[[str], None],
) -> VerifyReport:
    """Compare; if `repair` is set and rows differ, repair them and compare again."""

    def compare(limit: int) -> list[Verdict]:
        return home.verify(
            spark, source, tables, limit=limit, exact=exact, progress=lambda name: progress(f"comparing {name}")
        )

    verdicts = compare(_MAX_REPAIRED if repair else _MAX_SHOWN)
    report = verify_report(source, verdicts, _MAX_SHOWN)
    if not repair or not report.differs:
        return report
    repairs = [_repair(home, spark, verdict, progress) for verdict in verdicts if verdict.key]
    after = verify_report(source, compare(_MAX_SHOWN), _MAX_SHOWN)
    return replace(after, repairs=[done for done in repairs if done is not None], before=report)


def _repair(home: Home, spark: SparkSession, verdict: Verdict, progress: Callable[[str], None]) -> VerifyRepair | None:
    """Repair the rows that differ; return None if there are none."""
    if verdict.equal or verdict.differences is None:
        return None
    name = f"{verdict.source}.{verdict.local}"
    progress(f"repairing {name}")
    record = home.repair(verdict.source, verdict.table, keys=verdict.differences.keys, spark=spark, progress=progress)
    return VerifyRepair(
        f"{verdict.source}.{verdict.local}", record.rows_changed or 0, str(record.low), str(record.high)
    )


# -- for a terminal ----------------------------------------------------------------------------------------------------


def draw(console: Console, report: VerifyReport) -> None:
    """Print a report; after a repair, print the first comparison before the second."""
    if report.before is not None:
        draw(console, report.before)
        for done in report.repairs:
            console.print(f"repaired {escape(done.name)}: {done.rows_changed:,} rows changed, at {done.high}")
        console.print("compared again:")
    console.print(_overview(report))
    for table in report.tables:
        for line in _details(table):
            console.print(line)


def _overview(report: VerifyReport) -> Table:
    drawn = Table(box=None, pad_edge=False)
    for name in ("table", "rows", "result", "position"):
        drawn.add_column(name, justify="right" if name == "rows" else "left")
    for table in report.tables:
        rows = "" if table.rows is None else f"{table.rows:,}"
        drawn.add_row(escape(table.name), rows, _result(table), table.position or "")
    return drawn


def _result(table: VerifyTable) -> Text:
    counts = {"missing": table.missing, "unexpected": table.unexpected, "changed": table.changed}
    details = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return Text(f"{table.result}: {details}" if details else table.result, style=_COLORS[table.result])


def _details(table: VerifyTable) -> list[Text]:
    if table.error is not None:
        return [Text(with_hint(f"{table.name}: {table.error}", table.hint), style="yellow")]
    lines = [Text(f"{table.name}  {key.how:<10}  {json.dumps(key.key, ensure_ascii=False)}") for key in table.keys]
    left = (table.differing or 0) - len(table.keys)
    if table.keys and left:
        lines.append(Text(f"{table.name}  and {left:,} more"))
    elif left:
        again = f"ALTER SOURCES {table.name.partition('.')[0]} RETRY TABLE {table.upstream};"
        lines.append(Text(f"{table.name}  has no key, so single rows cannot be repaired; copy it again with: {again}"))
    return lines
