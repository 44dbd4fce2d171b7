"""``penstock sql``: execute statements from an argument, a file or a prompt, and print their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.prompt import Prompt
from penstock.cli.spark_session import spark_when_needed
from penstock.cli.sql_output import OutputFormat, SqlOutput
from penstock.cli.sql_sessions import LocalSession, RemoteSession, SqlSession
from penstock.errors import UsageError
from penstock.positions import Lsn, parse_as_of
from penstock.server.address import running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.home import Home

__all__ = ["answer", "read_script", "sql"]


def read_script(file: Path) -> str:
    """Return the text of an SQL file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"could not read file {file}: {error}"
        raise UsageError(message, "Check the path. The file must be UTF-8 text with SQL statements.") from error


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

    If `penstock run` runs the home, it executes the statements, and a small query takes a fraction of a second.
    Otherwise, this command starts Spark when a statement needs it.

    Example: penstock sql "SELECT status, count(*) FROM shop.orders GROUP BY status"
    """
    text = _text(query, file)
    with _session(home, text, as_of) as session:
        shown = SqlOutput(output)
        if text is not None:
            shown.print(session.execute(text))
            return

        def print_results(typed: str) -> None:
            shown.print(session.execute(typed))

        Prompt(print_results, session.complete, read_script, shown, session.description()).run()


@contextmanager
def _session(home: Path, text: str | None, as_of: str | None) -> Iterator[SqlSession]:
    """Open a session in the process that runs the home, or in this one."""
    position = None if as_of is None else parse_as_of(as_of)
    server = running_server(home)
    if server is not None:
        yield RemoteSession(server, as_of)
        return
    from penstock.home import open_to_run

    opened = open_to_run(home, text)
    with spark_when_needed() as spark:
        yield LocalSession(opened, spark, position)


def answer(
    home: Home,
    spark: Callable[[], SparkSession],
    text: str,
    output: OutputFormat,
    as_of: Lsn | datetime | None = None,
) -> None:
    """Execute statements in order with a Spark of this process, and print their results; stop at the first error."""
    SqlOutput(output).print(LocalSession(home, spark, as_of).execute(text))


def _text(query: str | None, file: Path | None) -> str | None:
    """Return the statements to execute; None for a prompt."""
    if query is not None and file is not None:
        message = "statements in an argument cannot be combined with --file"
        raise UsageError(message, "Use one of them.")
    return query if file is None else read_script(file)
