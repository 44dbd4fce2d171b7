"""``penstock sql``."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.prompt import Prompt
from penstock.cli.rows import OutputFormat, print_answer, print_frame
from penstock.cli.script import read_script
from penstock.cli.starting import spark_when_needed
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home, open_to_run
from penstock.positions import Lsn, parse_as_of
from penstock.sql.answer import Answer

__all__ = ["answer", "sql"]

_PLAN = re.compile(r"(SQLSTATE: \w+(?:; line \d+ pos \d+)?);\n.*", re.DOTALL)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)


def sql(
    query: Annotated[str | None, typer.Argument(help="Statements, divided by ; — without any, a prompt.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the statements from a file.")] = None,
    output: Annotated[OutputFormat, typer.Option("--format", help="How to print rows.")] = OutputFormat.TABLE,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="LSN|TIMESTAMP", help="Read all tables as they were; AS OF in a query wins."),
    ] = None,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Run statements: Spark SQL over live tables, named source.table, and those that make, change and show sources.

    CREATE SOURCES, EXPLAIN SOURCES, ALTER SOURCES and DROP SOURCES make, explain, change and remove them. SHOW SOURCES,
    SHOW TABLES, SHOW ERRORS and SHOW CREATE SOURCES tell of them.

    VERIFY source.table compares live tables with Postgres, REPAIR source.table puts rows right.

    Behind a table, AS OF TIMESTAMP '2026-11-15T12:00:00Z' or AS OF LSN '16/B374D848' asks for it as it was then.

    Example: penstock sql "SELECT status, count(*) FROM shop.orders GROUP BY status"
    """
    text = _text(query, file)
    opened = open_to_run(home, text)
    moment = None if as_of is None else parse_as_of(as_of)
    with spark_when_needed() as spark:
        if text is None:
            Prompt(lambda typed: answer(opened, spark, typed, output, moment), opened.completions).run()
        else:
            answer(opened, spark, text, output, moment)


def answer(
    home: Home,
    spark: Callable[[], SparkSession],
    text: str,
    output: OutputFormat,
    as_of: Lsn | datetime | None = None,
) -> None:
    """Run statements one after the other, and print what each gives; the first that fails ends it."""
    try:
        for result in home.script(text, spark, as_of):
            if isinstance(result, Answer):
                print_answer(result, output)
            else:
                print_frame(result, output)
    except (AnalysisException, ParseException) as error:
        raise UsageError(_said(error), "Tables are named source.table; see them with: SHOW TABLES;") from error
    except (PySparkException, Py4JJavaError) as error:  # the latter when it fails while rows are being fetched
        message = f"the query failed: {_said(error)}"
        raise DefiniteError(message, "Mend the query, or see with --debug where it failed.") from error


def _text(query: str | None, file: Path | None) -> str | None:
    """Return the statements to run; None asks for a prompt."""
    if query is not None and file is not None:
        message = "there are statements in an argument and in a file"
        raise UsageError(message, "Give one of them.")
    return query if file is None else read_script(file)


def _said(error: Exception) -> str:
    """Leave out Spark's plan of the query, and the JVM's stack."""
    causes = _CAUSE.findall(str(error)) if isinstance(error, Py4JJavaError) else []
    return causes[-1] if causes else _PLAN.sub(r"\1", str(error).split("JVM stacktrace")[0].strip())
