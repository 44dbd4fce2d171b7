"""``penstock drop``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import DebugOption, HomeOption
from penstock.control.home import open_existing

__all__ = ["drop"]


def drop(
    source: Annotated[str, typer.Argument(help="The source's name.")],
    home: HomeOption = Path(".penstock"),
    force: Annotated[bool, typer.Option("--force", help="Also when Postgres cannot be reached.")] = False,
    keep_tables: Annotated[bool, typer.Option("--keep-tables", help="Leave its tables in the lake.")] = False,
    debug: DebugOption = False,
) -> None:
    """Remove a source and what it made, also upstream: slot, publication, log, tables.

    Example: penstock drop shop
    """
    opened = open_existing(home)
    kept = opened.kept(source)
    left = opened.drop(source, force=force, keep_tables=keep_tables)
    typer.echo(f"dropped {source}")
    for thing in kept:
        typer.echo(f"left in Postgres, because it is yours: {thing}")
    if left:
        typer.echo("could not be removed; each later start tries again, or run by hand:")
        typer.echo("\n".join(left))
