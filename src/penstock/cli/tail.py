"""``penstock tail``."""

from __future__ import annotations

import enum
import itertools
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.interrupt import Interrupt
from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.transaction_text import print_skipped, render
from penstock.engine.transaction_tail import transaction_json
from penstock.errors import TableError
from penstock.home import open_existing
from penstock.positions import Lsn

__all__ = ["TailFormat", "tail"]


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
    print_skipped(error.table, str(Lsn(error.lsn)), error.message, error.hint)
