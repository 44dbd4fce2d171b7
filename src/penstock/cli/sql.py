"""``penstock sql``."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.starting import spark_when_needed
from penstock.control.home import Home, open_existing
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.positions import Lsn, parse_as_of

__all__ = ["OutputFormat", "sql"]

_PLAN = re.compile(r"(SQLSTATE: \w+(?:; line \d+ pos \d+)?);\n.*", re.DOTALL)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)


class OutputFormat(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    query: Annotated[str | None, typer.Argument(help="A query; without one, a prompt.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the query from a file.")] = None,
    output: Annotated[OutputFormat, typer.Option("--format", help="How to print rows.")] = OutputFormat.TABLE,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="LSN|TIMESTAMP", help="Read all tables as they were; AS OF in a query wins."),
    ] = None,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Query live tables, named source.table, with Spark SQL; all of them at one moment.

    SHOW SOURCES lists the sources with their frontiers.

    ALTER SOURCES source ADD TABLE schema.table [AS name], DROP TABLE schema.table or RETRY TABLE schema.table has a
    table captured, no more, or anew, while the others go on.

    VERIFY source or VERIFY source.table compares live tables with Postgres.

    Behind a table, AS OF TIMESTAMP '2026-11-15T12:00:00Z' or AS OF LSN '16/B374D848' asks for it as it was then.

    Example: penstock sql "SELECT status, count(*) FROM shop.orders GROUP BY status"
    """
    opened = open_existing(home)
    text = _text(query, file)
    moment = None if as_of is None else parse_as_of(as_of)
    with spark_when_needed() as spark:
        if text is not None:
            _answer(opened, spark, text, output, moment)
        else:
            spark()
            _prompt(opened, spark, output, moment)


def _text(query: str | None, file: Path | None) -> str | None:
    """Return the query to run; None asks for a prompt."""
    if query is not None and file is not None:
        message = "there are two queries, an argument and a file"
        raise UsageError(message, "Give one of them.")
    if file is not None:
        try:
            query = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            message = f"the file {file} cannot be read: {error}"
            raise UsageError(message, "Name a text file with one query in it.") from error
    return None if query is None else _statement(query)


def _statement(text: str) -> str:
    statement = text.strip().rstrip(";")
    if not statement:
        message = "there is no query"
        raise UsageError(message, 'For example: penstock sql "SELECT 1"')
    return statement


def _obey(home: Home, spark: Callable[[], SparkSession], text: str, output: OutputFormat) -> bool:
    """Carry out a statement of ours; False for a query."""
    answer = home.obey(text, spark)
    if answer is None:
        return False
    if answer.told:
        typer.echo(answer.told)
    elif output is OutputFormat.JSON:
        for row in answer.rows:
            typer.echo(json.dumps(dict(zip(answer.columns, row, strict=True))))
    elif output is OutputFormat.CSV:
        csv.writer(sys.stdout).writerows([answer.columns, *answer.rows])
    else:
        _print_rows(list(answer.columns), answer.rows)
    return True


def _answer(
    home: Home,
    spark: Callable[[], SparkSession],
    text: str,
    output: OutputFormat,
    as_of: Lsn | datetime | None = None,
) -> None:
    """Run a query and print its rows; what is wrong with it may show only while it runs."""
    statement = _statement(text)
    if _obey(home, spark, statement, output):
        return
    try:
        live = home.live(spark(), as_of)
        _print(live.sql(statement), output)
    except (AnalysisException, ParseException) as error:
        raise UsageError(_said(error), "Tables are named source.table; see them with: penstock status") from error
    except (PySparkException, Py4JJavaError) as error:  # the latter when it fails while rows are being fetched
        message = f"the query failed: {_said(error)}"
        raise DefiniteError(message, "Mend the query, or see with --debug where it failed.") from error


def _said(error: Exception) -> str:
    """Leave out Spark's plan of the query, and the JVM's stack."""
    causes = _CAUSE.findall(str(error)) if isinstance(error, Py4JJavaError) else []
    return causes[-1] if causes else _PLAN.sub(r"\1", str(error).split("JVM stacktrace")[0].strip())


def _prompt(
    home: Home, spark: Callable[[], SparkSession], output: OutputFormat, as_of: Lsn | datetime | None = None
) -> None:
    """Read queries line by line until the end of input; each sees the moment at which it was asked, or `as_of`."""
    import readline  # noqa: F401 - gives input() editing and history

    sys.stderr.write("Spark SQL over live tables; each query ends with ;  Ctrl-D leaves.\n")
    lines: list[str] = []
    while True:
        try:
            lines.append(input("penstock> " if not lines else "      ... "))
        except EOFError:
            return
        except KeyboardInterrupt:
            lines.clear()
            continue
        if lines[-1].rstrip().endswith(";"):
            try:
                _answer(home, spark, "\n".join(lines), output, as_of)
            except PenstockError as error:
                sys.stderr.write(f"{error}\n")
            lines.clear()


def _print(rows: DataFrame, output: OutputFormat) -> None:
    names = rows.columns
    if output is OutputFormat.TABLE:
        _print_rows(names, rows.toLocalIterator())
    elif output is OutputFormat.JSON:
        whole = {"ignoreNullFields": "false"}
        for (line,) in rows.select(F.to_json(F.struct("*"), whole)).toLocalIterator():
            typer.echo(line)
    else:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(rows.toLocalIterator())


def _print_rows(names: list[str], rows: Iterable[Sequence[Any]]) -> None:
    table = Table()
    for name in names:
        table.add_column(escape(name))
    count = 0
    for row in rows:
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
        count += 1
    Console().print(table)
    typer.echo(f"{count} rows")
