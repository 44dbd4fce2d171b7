"""``penstock sql``: execute statements from an argument, a file or a prompt, and print their results.

Rows are printed as a table, as JSON lines, or as CSV. The prompt has history, completion, and backslash commands. A
statement may span several lines, and ends with a semicolon at the end of a line. A backslash command is one line.
"""

from __future__ import annotations

import csv
import json
import os
import re
import readline
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
from penstock.cli.spark_session import spark_when_needed
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.home import Home, open_to_run
from penstock.name_suggestions import nearest
from penstock.positions import Lsn, parse_as_of
from penstock.sql.show_statements import Answer

__all__ = ["OutputFormat", "Prompt", "answer", "expanded", "read_script", "sql"]


def read_script(file: Path) -> str:
    """Return the text of an SQL file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"could not read file {file}: {error}"
        raise UsageError(message, "Check the path. The file must be UTF-8 text with SQL statements.") from error


class OutputFormat(StrEnum):
    """The output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def _print_answer(answer: Answer, output: OutputFormat) -> None:
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


def _print_frame(rows: DataFrame, output: OutputFormat) -> None:
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


# -- prompt ------------------------------------------------------------------------------------------------------------

_FIRST, _NEXT = "penstock> ", "      ... "
_HISTORY_LINES = 2_000
_HELP = """\
\\s              list sources: SHOW SOURCES
\\d              list all tables: SHOW TABLES
\\d source       list the tables of a source: SHOW TABLES FROM source
\\d source.table describe a table
\\e              list errors: SHOW ERRORS
\\c source       show the statement that creates a source: SHOW CREATE SOURCES source
\\?              show this help
\\q              quit (or Ctrl-D)
End statements with a semicolon. Tab completes keywords and names."""
_SECRET = re.compile(r"password|secret|token|redact[\s_]+key", re.IGNORECASE)
"""Lines that match are not stored in the history: they may contain a secret."""
_LEAVE, _SHOW_HELP = "\\q", "\\?"


class Prompt:
    """Reads statements and hands each to `answer`, until the end of input."""

    def __init__(self, answer: Callable[[str], None], complete: Callable[[str], Sequence[str]]) -> None:
        """`complete` returns the completions of the word at the end of a text."""
        self._answer = answer
        self._complete = complete
        self._lines: list[str] = []

    def run(self) -> None:
        """Read and execute statements; print an error and continue if one fails."""
        history = _history_file()
        with suppress(OSError):
            readline.read_history_file(history)
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer(self._candidate)
        readline.set_completer_delims(" \t\n(),='.")
        readline.parse_and_bind("tab: complete")
        sys.stderr.write("Spark SQL and Penstock statements; end each with a semicolon. \\? for help, \\q to quit.\n")
        try:
            while self._read_line():
                pass
        finally:
            readline.set_completer(None)
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(history)
                history.chmod(0o600)

    def _read_line(self) -> bool:
        try:
            line = input(_NEXT if self._lines else _FIRST)
        except EOFError:
            return False
        except KeyboardInterrupt:
            self._lines.clear()
            sys.stderr.write("\n")
            return True
        if not self._lines and line.strip() in (_LEAVE, "quit", "exit"):
            return False
        if _SECRET.search(line) and readline.get_current_history_length():
            readline.remove_history_item(readline.get_current_history_length() - 1)
        self._lines.append(line)
        short = len(self._lines) == 1 and line.lstrip().startswith("\\")
        if short or line.rstrip().endswith(";"):
            text = "\n".join(self._lines)
            self._lines.clear()
            self._try(text, short)
        return True

    def _try(self, text: str, short: bool) -> None:
        try:
            if text.strip() == _SHOW_HELP:
                sys.stdout.write(f"{_HELP}\n")
            else:
                self._answer(expanded(text) if short else text)
        except PenstockError as error:
            sys.stderr.write(f"{error}\n")

    def _candidate(self, word: str, number: int) -> str | None:
        before = "\n".join([*self._lines, readline.get_line_buffer()[: readline.get_endidx()]])
        with suppress(PenstockError, IndexError):
            return self._complete(before)[number]
        return None


def expanded(short: str) -> str:
    """Return the statement of a backslash command."""
    command, _, about = short.strip().partition(" ")
    about = about.strip().rstrip(";")
    statements = {
        "\\s": "SHOW SOURCES",
        "\\d": f"SHOW TABLES FROM {about}" if about else "SHOW TABLES",
        "\\e": "SHOW ERRORS",
        "\\c": f"SHOW CREATE SOURCES {about}",
    }
    if command not in statements:
        message = f"invalid command {command}"
        raise UsageError(message, f"{nearest(command, statements)} Try \\? for help.".strip())
    if command == "\\d" and "." in about:
        return f"DESCRIBE {about}"
    return statements[command]


def _history_file() -> Path:
    """Return the path of the history file."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "penstock" / "history"


# -- command -----------------------------------------------------------------------------------------------------------

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
                _print_answer(result, output)
            else:
                _print_frame(result, output)
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
