"""The ``penstock`` command. Errors are printed as a message and a hint; each error class has an exit code."""

from __future__ import annotations

import importlib.metadata
import sys
import traceback
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from penstock.cli.check import check
from penstock.cli.demo import demo
from penstock.cli.drop import drop
from penstock.cli.repair import repair
from penstock.cli.run import run
from penstock.cli.sql import sql
from penstock.cli.status import status
from penstock.cli.tail import tail
from penstock.cli.ui import ui
from penstock.cli.verify import verify
from penstock.engine.error_policy import as_penstock_error
from penstock.errors import DefiniteError, PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Postgres tables in Apache Spark, live and transaction-consistent.",
    epilog="Exit codes: 0 success, 1 a check or verification failed, 2 invalid usage, 3 permanent error, "
    "4 transient error that persisted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (demo, run, check, sql, status, ui, tail, verify, repair, drop):
    app.command()(command)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"penstock {importlib.metadata.version('penstock')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; print a traceback only with ``--debug``."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exception(error)
        known = _as_penstock_error(error)
        _print_error(known)
        sys.exit(known.exit_code)


def _as_penstock_error(error: Exception) -> PenstockError:
    """Return any exception as a Penstock error."""
    ours = as_penstock_error(error)
    if ours is not None:
        return ours
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return DefiniteError(
            f"{where}{error.strerror}", "Check that it exists, its permissions, and the free disk space."
        )
    text = " ".join(str(error).split())[:300]
    return DefiniteError(
        f"unexpected {type(error).__name__}: {text}",
        "This is a defect in Penstock. Report it with the output of --debug.",
    )


def _print_error(error: PenstockError) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(error.message)}")
    if error.hint:
        console.print(f"[bold]hint:[/] {escape(error.hint)}")
