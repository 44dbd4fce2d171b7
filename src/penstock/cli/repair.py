"""``penstock repair``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.spark_session import spark_when_needed, waiting
from penstock.errors import UsageError
from penstock.home import open_existing
from penstock.sql.show_statements import repair_summary

__all__ = ["repair"]


def repair(
    source: Annotated[str, typer.Argument(help="The name of the source.")],
    table: Annotated[str, typer.Argument(help="One of its tables, as schema.table.")],
    keys: Annotated[
        str | None,
        typer.Option("--keys", help='Repair the rows with these keys, as JSON: [1, 2] or [{"a": 1, "b": "x"}].'),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", help="Repair the rows that match a condition, in SQL valid in both Postgres and Spark."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Repair all rows.")] = False,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Read rows of a live table again from Postgres and correct them, while capture continues.

    Rows deleted upstream are removed. If `penstock run` is active, it does the repair; otherwise this command captures
    until the repair is done. SHOW REPAIRS lists all repairs, with their user and positions.

    Example: penstock repair shop public.orders --keys '[17, 18]'
    """
    opened = open_existing(home)
    chosen = None if keys is None else _parse_keys(keys)
    request = opened.request_repair(source, table, keys=chosen, where=where, everything=everything)
    with spark_when_needed() as spark, waiting(f"repairing {table}") as progress:
        done = opened.wait_for_repair(request, None if opened.is_running() else spark(), progress)
    typer.echo(repair_summary(done))


def _parse_keys(text: str) -> list[Any]:
    """Parse keys; a single key becomes a list of one."""
    try:
        found = json.loads(text)
    except ValueError as error:
        message = f"invalid JSON in --keys: {error}"
        raise UsageError(message, "For example: --keys '[1, 2]'") from None
    return found if isinstance(found, list) else [found]
