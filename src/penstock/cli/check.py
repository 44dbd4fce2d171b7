"""``penstock check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from penstock.cli.options import (
    DebugOption,
    ExcludeOption,
    FailoverOption,
    HomeOption,
    JsonOption,
    PartitionsChoice,
    PartitionsOption,
    PasswordOption,
    PublicationOption,
    RulesChoice,
    RulesOption,
    SchemaOption,
    SlotOption,
    TableOption,
    TextOption,
    source_options,
)
from penstock.cli.spark_session import waiting
from penstock.engine.check import CheckFinding, CheckReport
from penstock.home import check_target

__all__ = ["check", "draw"]

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}


def check(
    target: Annotated[str, typer.Argument(help="The URL of a database (postgresql://…), or the name of a source.")],
    home: HomeOption = Path(".penstock"),
    password: PasswordOption = None,
    schema: SchemaOption = None,
    table: TableOption = None,
    exclude_column: ExcludeOption = None,
    text_column: TextOption = None,
    publication: PublicationOption = None,
    slot: SlotOption = None,
    rules: RulesOption = RulesChoice.OPEN,
    partitions: PartitionsOption = PartitionsChoice.LEAVES,
    failover: FailoverOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check whether a database can be captured, or whether a source can resume, without changing anything.

    Each finding comes with a hint, and with the SQL that fixes it where possible. Exit code 1: capture cannot start.

    Example: penstock check postgresql://penstock@db.example.com/shop
    """
    options = source_options(
        *(password, schema, table, exclude_column, text_column, publication, slot, rules, partitions, failover)
    )
    with waiting("checking the database"):
        report = check_target(home, target, **options)
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        draw(Console(highlight=False, soft_wrap=True), report)
    if not report.ready:
        raise typer.Exit(1)


def draw(console: Console, report: CheckReport) -> None:
    """Print a report to a terminal."""
    for finding in report.findings:
        console.print(_finding(finding))
    capturable = sum(table.capturable for table in report.tables)
    verdict = f"{capturable} of {len(report.tables)} tables can be captured" if report.ready else "capture cannot start"
    console.print(Text.assemble(report.at, ": ", (verdict, "green" if report.ready else "red")))


def _finding(finding: CheckFinding) -> Text:
    text = Text.assemble((f"{finding.level:<8}", _COLORS[finding.level]), f"{finding.object}: {finding.why}")
    return text.append(f"\n        hint: {finding.hint}") if finding.hint else text
