"""The output of ``penstock sql``: rows as a table, as records, as JSON lines, or as CSV.

JSON lines and CSV are printed as rows arrive; a table is printed when it is complete, because its widths depend on all
rows. On a terminal, a table fits into its width; elsewhere, it is as wide as its values. The transactions of a
subscription are blocks of text, or JSON lines.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

import typer

from penstock.cli.transaction_text import print_skipped, render

__all__ = ["OutputFormat", "SqlOutput"]

_ANY_WIDTH = 1_000_000


class OutputFormat(StrEnum):
    """The output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass
class SqlOutput:
    """Prints messages; a prompt changes its settings."""

    form: OutputFormat = OutputFormat.TABLE
    expanded: bool = False
    """Whether each row of a table is printed as a record, one line per column."""
    timing: bool = False
    """Whether the time of execution is printed."""

    def print(self, messages: Iterable[dict[str, Any]]) -> None:
        """Print the results of statements."""
        began, left = time.perf_counter(), iter(messages)
        for message in left:
            if "answer" in message and "message" in message["answer"]:
                typer.echo(message["answer"]["message"])
            elif "answer" in message:
                self._print_rows(message["answer"]["columns"], message["answer"]["rows"])
            elif "subscribed" in message:
                typer.echo(f"subscribed to {message['subscribed']}; Ctrl-C ends it", err=True)
            elif "transaction" in message:
                line = _json(message["transaction"])
                typer.echo(render(line) if self.form is OutputFormat.TABLE else line)
            elif "skipped" in message:
                skipped = message["skipped"]
                print_skipped(skipped["table"], skipped["position"], skipped["message"], skipped["hint"])
            elif "columns" in message:
                self._print_rows([column["name"] for column in message["columns"]], _rows(left))
        if self.timing:
            typer.echo(f"Time: {(time.perf_counter() - began) * 1000:.3f} ms")

    def _print_rows(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        if self.form is OutputFormat.JSON:
            keys = [json.dumps(name, ensure_ascii=False) for name in names]
            for row in rows:
                pairs = (f"{key}:{_json(value)}" for key, value in zip(keys, row, strict=True))
                typer.echo(f"{{{','.join(pairs)}}}")
        elif self.form is OutputFormat.CSV:
            writer = csv.writer(sys.stdout)
            writer.writerow(names)
            writer.writerows(map(_texts, rows))
        elif self.expanded:
            _print_records(names, rows)
        else:
            _print_table(names, rows)


def _rows(messages: Iterator[dict[str, Any]]) -> Iterator[list[Any]]:
    """Yield the rows of a query, up to the message that ends it."""
    for message in messages:
        if "done" in message:
            return
        yield from message["rows"]


def _print_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for name in names:
        table.add_column(escape(name))
    for row in rows:
        table.add_row(*map(escape, _texts(row)))
    console = Console()
    (console if console.is_terminal else Console(width=_ANY_WIDTH)).print(table)
    typer.echo(f"{table.row_count} row{'s' * (table.row_count != 1)}")


def _print_records(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    width = max(map(len, names), default=0)
    for number, row in enumerate(rows, 1):
        typer.echo(f"-[ RECORD {number} ]{'-' * max(0, width - len(str(number)) - 8)}")
        for name, text in zip(names, _texts(row), strict=True):
            typer.echo(f"{name:<{width}} | {text}")


def _texts(row: Sequence[Any]) -> list[str]:
    """Return the values of a row as texts; null is empty."""
    return ["" if value is None else value if isinstance(value, str) else _json(value) for value in row]


def _json(value: Any) -> str:
    """Return a parsed JSON value as text, with the digits of its numbers."""
    match value:
        case Decimal():
            return str(value)
        case list():
            return f"[{','.join(map(_json, value))}]"
        case dict():
            return (
                f"{{{','.join(f'{json.dumps(key, ensure_ascii=False)}:{_json(item)}' for key, item in value.items())}}}"
            )
        case _:
            return json.dumps(value, ensure_ascii=False)
