"""``penstock init``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.check import draw
from penstock.cli.options import DebugOption, PasswordOption
from penstock.cli.spark_session import waiting
from penstock.engine.check import check_database, is_database_url
from penstock.engine.shards import described
from penstock.errors import UsageError
from penstock.executor import statement_of

__all__ = ["init"]

_HEAD = "-- The sources of a home: `penstock run FILE` creates the missing ones, and runs all of them.\n"


def init(
    url: Annotated[
        str | None, typer.Argument(help="The URL of a database (postgresql://…). Asked for if omitted.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the source. Default: that of the database.")
    ] = None,
    password: PasswordOption = None,
    file: Annotated[Path, typer.Option("--file", "-f", help="The SQL file to write.")] = Path("penstock.sql"),
    debug: DebugOption = False,
) -> None:
    """Check a database, and write an SQL file that captures it. Creates nothing in the database.

    Without a URL, asks for it and for the reference to the password. The file contains references only, never a
    password. Exit code 1: capture cannot start; the findings say why, and no file is written.

    Example: penstock init postgresql://penstock@db.example.com/shop --password env:SHOP_PASSWORD
    """
    if file.exists():
        message = f"{file} already exists"
        raise UsageError(message, "Run it (`penstock run FILE`), or choose another name with --file.")
    if url is None:
        url, password = _asked(password)
    if not is_database_url(url):
        message = "invalid database URL"  # it may contain a password
        raise UsageError(message, "Use postgresql://user@host:5432/database.")
    options = {"password": password} if password else {}
    source = described(url, name, **options)
    with waiting("checking the database"):
        report = check_database(url, **options)
    draw(Console(highlight=False, soft_wrap=True), report)
    if not report.ready:
        raise typer.Exit(1)
    file.write_text(f"{_HEAD}{statement_of(source)}\n", encoding="utf-8")
    typer.echo(f"wrote {file}; next: penstock run {shlex.quote(str(file))}")


def _asked(password: str | None) -> tuple[str, str | None]:
    """Ask for the URL, and for the reference to the password unless it was given."""
    if not sys.stdin.isatty():
        message = "missing database URL"
        raise UsageError(message, "For example: penstock init postgresql://user@host:5432/database")
    url = typer.prompt("Database URL, like postgresql://user@host:5432/database", err=True)
    if password is None:
        question = "Where the password is: env:NAME, file:PATH, or nothing for PGPASSWORD and ~/.pgpass"
        password = typer.prompt(question, default="", show_default=False, err=True)
    return url.strip(), password or None
