"""The ``penstock`` command. Errors are printed as a message and a hint; each error class has an exit code.

The module of a command is imported when the command runs: ``penstock --help`` and ``penstock status`` need neither
Spark nor compiled kernels, and start in a fraction of the time that those take. The list of commands therefore has its
own summaries, which are the first lines of the commands' help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from penstock.errors import PenstockError

__all__ = ["SUMMARIES", "app", "main"]

SUMMARIES = {
    "demo": "Demonstrate Penstock: start a Postgres with a shop and a bank under load, and capture it into live Spark"
    " tables.",
    "run": "Capture the tables of a database, and run all sources of the home, until Ctrl-C.",
    "check": "Check whether a database can be captured, or whether a source can resume, without changing anything.",
    "sql": "Execute statements: Spark SQL over live tables, named source.table, and Penstock's statements for sources.",
    "status": "Show sources, tables and sinks with their states, positions, lag and errors.",
    "logs": "Print the log of a home: what `penstock run` did, oldest first, with times in UTC.",
    "ui": "Print the URL of the status page of a running home, and open it in a browser if there is one.",
    "tail": "Print complete transactions as they commit, until Ctrl-C. A table that fails is skipped, with a note on"
    " stderr.",
    "verify": "Compare live tables with Postgres, row by row, all of them at one position.",
    "repair": "Read rows of a live table again from Postgres and correct them, while capture continues.",
    "drop": "Remove a source with its slot, publication, change log and tables.",
    "init": "Check a database, and write an SQL file that captures it. Creates nothing in the database.",
    "setup": "Download the jars for Spark and compile kernels ahead, for images and machines without network access.",
}
"""The commands: each is the function of this name in the module `penstock.cli` of the same name."""


class _Commands(MutableMapping[str, Any]):
    """The commands by name, each imported on access; Typer may add others."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded and name in SUMMARIES:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**SUMMARIES, **self._loaded})

    def __len__(self) -> int:
        return len({**SUMMARIES, **self._loaded})


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they are needed; global options may precede the command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move global options after the command."""
        from penstock.cli.global_options import with_global_options

        return super().parse_args(ctx, with_global_options(args))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of `SUMMARIES`."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the group, with the summaries instead of the commands' own help."""
        commands, self.commands = (
            self.commands,
            {name: TyperCommand(name, help=text) for name, text in SUMMARIES.items()},
        )
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = commands


def _load(name: str) -> Any:
    """Import a command."""
    import importlib

    single = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    single.command(name)(getattr(importlib.import_module(f"penstock.cli.{name}"), name))
    return typer.main.get_command(single)


app = typer.Typer(
    name="penstock",
    cls=_LazyGroup,
    help="Postgres tables in Apache Spark, live and transaction-consistent.",
    epilog="Exit codes: 0 success, 1 a check or verification failed, 2 invalid usage, 3 permanent error, "
    "4 transient error that persisted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
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
    from penstock.cli.global_options import wants_json

    as_json = wants_json(sys.argv)
    try:
        sys.exit(app(standalone_mode=False) if as_json else app())
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if "--debug" in sys.argv:
            import traceback

            traceback.print_exception(error)
        known = _as_penstock_error(error)
        _print_json(known) if as_json else _print_error(known)
        sys.exit(known.exit_code)


def _as_penstock_error(error: Exception) -> PenstockError:
    """Return any exception as a Penstock error."""
    from penstock.errors import DefiniteError, PenstockError, UsageError

    if isinstance(error, PenstockError) and "pyspark" not in sys.modules:  # else the cause may be that Spark has ended
        return error
    from penstock.engine.error_policy import as_penstock_error

    if hasattr(error, "format_message"):  # of the command line parser
        return UsageError(error.format_message(), "Run the command with --help.")
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


def _print_json(error: PenstockError) -> None:
    import json

    found = {"message": error.message, "hint": error.hint, "code": error.exit_code}
    typer.echo(json.dumps({"error": found}, ensure_ascii=False), err=True)


def _print_error(error: PenstockError) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(error.message)}")
    if error.hint:
        console.print(f"[bold]hint:[/] {escape(error.hint)}")
