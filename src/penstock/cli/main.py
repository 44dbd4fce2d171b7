"""``penstock``: the command line. Errors say what happened, where, and what to do; exit codes are documented."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from penstock.cli.demo import demo
from penstock.cli.drop import drop
from penstock.cli.run import run
from penstock.cli.sql import sql
from penstock.cli.status import status
from penstock.errors import PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Postgres tables in Apache Spark, live and transaction-consistent.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 a definite error, 4 gave up on a transient one.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (demo, run, sql, status, drop):
    app.command()(command)


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"penstock {importlib.metadata.version('penstock')}")
        raise typer.Exit


def main() -> None:
    """Run a command; no traceback without ``--debug``."""
    try:
        app()
    except PenstockError as error:
        if "--debug" in sys.argv:
            raise
        _show(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _show(error: PenstockError) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error[/]  {escape(error.message)}")
    if error.remedy:
        console.print(f"[bold]to do[/]  {escape(error.remedy)}")
