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
from penstock.cli.spark_session import spark_when_needed
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home, open_to_run
from penstock.positions import Lsn, parse_as_of
from penstock.sql.answer import Answer

__all__ = ["answer", "sql"]

_PLAN = re.compile(r"(SQLSTATE: \w+(?:; line \d+ pos \d+)?);\n.*", re.DOTALL)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)


def sql(
    query: Annotated[
        str | None, typer.Argument(help="Statements, separated by semicolons. Default: an interactive prompt.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the statements from a file.")] = None,
    output: Annotated[OutputFormat, typer.Option("--format", help="Output format of rows.")] = OutputFormat.TABLE,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="LSN|TIMESTAMP",
            help="Read all tables as of this position or time. AS OF in a query overrides it.",
        ),
    ] = None,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Execute statements: Spark SQL over live tables, named source.table, and Penstock's statements for sources.

    CREATE SOURCES, EXPLAIN SOURCES, ALTER SOURCES and DROP SOURCES create, explain, change and remove sources. SHOW
    SOURCES, SHOW TABLES, SHOW ERRORS and SHOW CREATE SOURCES describe them.

    VERIFY source.table compares live tables with Postgres; REPAIR source.table corrects their rows.

    AS OF TIMESTAMP '2026-11-15T12:00:00Z' or AS OF LSN '16/B374D848' after the name of a table reads an earlier state.

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
    """Execute statements in order and print their results; stop at the first error."""
    try:
        for result in home.script(text, spark, as_of):
            if isinstance(result, Answer):
                print_answer(result, output)
            else:
                print_frame(result, output)
    except (AnalysisException, ParseException) as error:
        raise UsageError(_message(error), "Tables are named source.table. List them with SHOW TABLES;") from error
    except (PySparkException, Py4JJavaError) as error:  # the latter is raised while rows are fetched
        message = f"query failed: {_message(error)}"
        raise DefiniteError(message, "Fix the query, or run it with --debug for a traceback.") from error


def _text(query: str | None, file: Path | None) -> str | None:
    """Return the statements to execute; None for a prompt."""
    if query is not None and file is not None:
        message = "statements in an argument cannot be combined with --file"
        raise UsageError(message, "Use one of them.")
    return query if file is None else read_script(file)


def _message(error: Exception) -> str:
    """Return Spark's message without the query plan and the JVM's stack trace."""
    causes = _CAUSE.findall(str(error)) if isinstance(error, Py4JJavaError) else []
    return causes[-1] if causes else _PLAN.sub(r"\1", str(error).split("JVM stacktrace")[0].strip())
