"""Progress bars for the initial snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.cli.interrupt import Interrupt

if TYPE_CHECKING:
    from penstock.engine.runner import HomeRunner
    from penstock.engine.supervisor import Supervisor
    from penstock.home import Home

__all__ = ["Copy", "show_copy", "update_bars"]


class Copy(Protocol):
    """The progress of one table's snapshot, as `Home.copied` reports it."""

    @property
    def rows(self) -> int:
        """The number of rows copied."""

    @property
    def bytes(self) -> int:
        """The number of bytes copied."""

    @property
    def total_rows(self) -> int:
        """The estimated number of rows."""

    @property
    def total_bytes(self) -> int:
        """The estimated number of bytes."""

    @property
    def waiting(self) -> str | None:
        """The reason for which the snapshot has not started, if it waits."""


def show_copy(console: Console, home: Home, running: HomeRunner | Supervisor, interrupt: Interrupt) -> None:
    """Wait until every table has its snapshot; show a progress bar for each table that is being copied."""
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
    """Show a bar for each snapshot, in rows and bytes; remove the bars of completed ones."""
    for name, copy in now.items():
        if name not in bars:
            bars[name] = progress.add_task(f"  {name}, rows", total=None, size="")
        size = copy.waiting or f"{decimal(copy.bytes)} of {decimal(copy.total_bytes)}"
        progress.update(bars[name], completed=copy.rows, total=copy.total_rows, size=size)
    for name in set(bars) - set(now):
        progress.remove_task(bars.pop(name))
