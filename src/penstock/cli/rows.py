"""Print rows as a table, as JSON lines, or as CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.sql.answer import Answer

__all__ = ["OutputFormat", "print_answer", "print_frame"]


class OutputFormat(StrEnum):
    """The output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def print_answer(answer: Answer, output: OutputFormat) -> None:
    """Print the result of a Penstock statement."""
    if answer.message:
        typer.echo(answer.message)
    elif output is OutputFormat.JSON:
        for row in answer.rows:
            typer.echo(json.dumps(dict(zip(answer.columns, row, strict=True))))
    elif output is OutputFormat.CSV:
        csv.writer(sys.stdout).writerows([answer.columns, *answer.rows])
    else:
        _print_table(answer.columns, answer.rows)


def print_frame(rows: DataFrame, output: OutputFormat) -> None:
    """Print the rows of a query as they arrive."""
    names = rows.columns
    if output is OutputFormat.TABLE:
        _print_table(names, rows.toLocalIterator())
    elif output is OutputFormat.JSON:
        whole = {"ignoreNullFields": "false"}
        for (line,) in rows.select(F.to_json(F.struct("*"), whole)).toLocalIterator():
            typer.echo(line)
    else:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(rows.toLocalIterator())


def _print_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    table = Table()
    for name in names:
        table.add_column(escape(name))
    count = 0
    for row in rows:
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
        count += 1
    Console().print(table)
    typer.echo(f"{count} rows")
