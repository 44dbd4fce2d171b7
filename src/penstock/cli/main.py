"""``penstock``: the command line. Errors say what happened, where, and what to do; exit codes are documented."""

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
from penstock.cli.verify import verify
from penstock.engine.error_policy import in_our_words
from penstock.errors import DefiniteError, PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Postgres tables in Apache Spark, live and transaction-consistent.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 a definite error, 4 gave up on a transient one.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (demo, run, check, sql, status, tail, verify, repair, drop):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Run a command; no traceback without ``--debug``."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exception(error)
        known = _known(error)
        _show(known)
        sys.exit(known.exit_code)


def _known(error: Exception) -> PenstockError:
    """Put into our words what nobody below did."""
    ours = in_our_words(error)
    if ours is not None:
        return ours
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return DefiniteError(f"{where}{error.strerror}", "Check that it is there, may be used, and has space left.")
    said = " ".join(str(error).split())[:300]
    return DefiniteError(
        f"unexpected {type(error).__name__}: {said}",
        "This is a defect in Penstock: please report it, with what --debug shows.",
    )


def _show(error: PenstockError) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error[/]  {escape(error.message)}")
    if error.hint:
        console.print(f"[bold]to do[/]  {escape(error.hint)}")
