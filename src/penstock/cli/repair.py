"""``penstock repair``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.starting import spark_when_needed, waiting
from penstock.errors import UsageError
from penstock.home import open_existing
from penstock.sql.answer import repaired

__all__ = ["repair"]


def repair(
    source: Annotated[str, typer.Argument(help="The source's name.")],
    table: Annotated[str, typer.Argument(help="One of its tables, as schema.table.")],
    keys: Annotated[
        str | None, typer.Option("--keys", help='Rows by their keys, as JSON: [1, 2] or [{"a": 1, "b": "x"}].')
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Rows by a condition, in SQL that both Postgres and Spark take.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All rows.")] = False,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Read rows of a live table anew upstream and put them right, beside the running stream.

    Rows that are absent upstream go. Works beside `penstock run`, which then does it; where nobody runs the home, it
    is run meanwhile. What was repaired, by whom and where in the stream, is kept: see SHOW REPAIRS.

    Example: penstock repair shop public.orders --keys '[17, 18]'
    """
    opened = open_existing(home)
    chosen = None if keys is None else _read(keys)
    asked = opened.ask_repair(source, table, keys=chosen, where=where, everything=everything)
    with spark_when_needed() as spark, waiting(f"repairing {table}") as progress:
        done = opened.wait_for_repair(asked, None if opened.is_run() else spark(), progress)
    typer.echo(repaired(done))


def _read(text: str) -> list[Any]:
    """Read keys; one that is given alone is a list of one."""
    try:
        found = json.loads(text)
    except ValueError as error:
        message = f"--keys is not JSON: {error}"
        raise UsageError(message, "Write it like --keys '[1, 2]'.") from None
    return found if isinstance(found, list) else [found]
