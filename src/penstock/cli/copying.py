"""Progress bars of the first copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.cli.interrupt import Interrupt

if TYPE_CHECKING:
    from penstock.engine.runner import Running
    from penstock.home import Home

__all__ = ["Copy", "show_copy", "update_bars"]


class Copy(Protocol):
    """What a bar shows of a copy, as `Home.copied` tells it."""

    @property
    def rows(self) -> int:
        """How many have come."""

    @property
    def bytes(self) -> int:
        """How many have come."""

    @property
    def total_rows(self) -> int:
        """About how many there are."""

    @property
    def total_bytes(self) -> int:
        """About how many there are."""

    @property
    def waiting(self) -> str | None:
        """What it waits for, before it begins."""


def show_copy(console: Console, home: Home, running: Running, interrupt: Interrupt) -> None:
    """Wait until every table is copied, with a bar for each that is being copied."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tables = progress.add_task("copying tables", total=None, size="")
        bars: dict[str, TaskID] = {}
        while not interrupt.wait(0.25):
            running.check()
            copied, total = running.copied_tables()
            progress.update(tables, completed=copied, total=total)
            if copied == total:
                return
            update_bars(
                progress, bars, {name: p for source in home.sources() for name, p in home.copied(source).items()}
            )


def update_bars(progress: Progress, bars: dict[str, TaskID], now: Mapping[str, Copy]) -> None:
    """Show a bar for each copy, by rows, with its bytes beside it; bars of copies that are whole go."""
    for name, copy in now.items():
        if name not in bars:
            bars[name] = progress.add_task(f"  {name}, rows", total=None, size="")
        size = copy.waiting or f"{decimal(copy.bytes)} of {decimal(copy.total_bytes)}"
        progress.update(bars[name], completed=copy.rows, total=copy.total_rows, size=size)
    for name in set(bars) - set(now):
        progress.remove_task(bars.pop(name))
