"""``penstock tail``."""

from __future__ import annotations

import enum
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from penstock.cli.interrupt import Interrupt
from penstock.cli.options import DebugOption, HomeOption
from penstock.engine.transaction_tail import transaction_json
from penstock.errors import TableError
from penstock.home import open_existing
from penstock.positions import Lsn

__all__ = ["TailFormat", "render", "tail"]

_WIDTH = 60
"""Longer values are truncated."""


class TailFormat(enum.StrEnum):
    """The output format of transactions."""

    TABLE = "table"
    JSON = "json"


def tail(
    source: Annotated[str, typer.Argument(help="The name of the source.")],
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables of the source, as schema.table. Default: all.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="Start position: earliest (all retained history), latest, or an LSN.")
    ] = "latest",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this number of transactions.")] = None,
    form: Annotated[
        TailFormat, typer.Option("--format", help="A text block, or a line of JSON, per transaction.")
    ] = TailFormat.TABLE,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Print complete transactions as they commit, until Ctrl-C. A table that fails is skipped, with a note on stderr.

    Example: penstock tail shop public.orders --from earliest --limit 10
    """
    opened = open_existing(home)
    with Interrupt() as interrupt:
        found = opened.tail(source, tables or (), start=start, stop=lambda: interrupt.asked, failed=_print_skipped)
        try:
            for transaction in itertools.islice(found, limit):
                line = transaction_json(source, transaction)
                typer.echo(line if form is TailFormat.JSON else render(line))
        except BrokenPipeError:  # the reader of the pipe has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            found.close()


def _print_skipped(error: TableError) -> None:
    """Report on stderr that a table is skipped; transactions of other tables continue on stdout."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]skipped:[/] {escape(error.table)} from {Lsn(error.lsn)}: {escape(error.message)}")
    if error.hint:
        console.print(f"[bold]hint:[/] {escape(error.hint)}")


def render(line: str) -> str:
    """Render a transaction, given as a line of JSON, for a terminal."""
    transaction = json.loads(line, parse_int=str, parse_float=str)
    shard = f"  shard {transaction['shard']}" if transaction.get("shard") else ""
    parts = [f"{transaction['lsn']}  {transaction['committed_at']}  xid {transaction['xid']}{shard}"]
    for table, changes in transaction["tables"].items():
        parts += [f"  {table}", *(f"    {change['op']:<8} {', '.join(_values(change))}" for change in changes)]
    return "\n".join(parts) + "\n"


def _values(change: dict[str, Any]) -> Iterator[str]:
    """Yield the columns of a change: the new value, and the old one if it is known and differs."""
    before, after = change["before"] or {}, change["after"]
    for name, value in (before if after is None else after).items():
        if name in change["unchanged"]:
            yield f"{name}: (unchanged)"
        elif after is not None and before.get(name) not in (None, value):
            yield f"{name}: {_short(before[name])} → {_short(value)}"
        else:
            yield f"{name}: {_short(value)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    plain = "".join(character if character.isprintable() else "·" for character in text)
    return plain if len(plain) <= _WIDTH else f"{plain[: _WIDTH - 1]}…"
