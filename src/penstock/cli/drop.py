"""``penstock drop``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import DebugOption, HomeOption
from penstock.engine.status import leftovers
from penstock.home import open_existing

__all__ = ["drop"]


def drop(
    source: Annotated[str, typer.Argument(help="The name of the source.")],
    home: HomeOption = Path(".penstock"),
    force: Annotated[
        bool,
        typer.Option("--force", help="Drop it even if Postgres is unreachable, or another home may use its objects."),
    ] = False,
    keep_tables: Annotated[bool, typer.Option("--keep-tables", help="Keep its tables in the lake.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")] = False,
    debug: DebugOption = False,
) -> None:
    """Remove a source with its slot, publication, change log and tables.

    Example: penstock drop shop
    """
    opened = open_existing(home)
    if source in opened.names() and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        tables = "keep" if keep_tables else "remove"
        question = f"Remove source {source}, its slot, publication and change log, and {tables} its tables?"
        typer.confirm(question, abort=True, err=True)
    kept = opened.kept(source)
    left = opened.drop(source, force=force, keep_tables=keep_tables)
    typer.echo(f"dropped {source}")
    for thing in kept:
        typer.echo(f"kept in Postgres, not created by Penstock: {thing}")
    for line in leftovers(opened.status(), left):
        typer.echo(line)
