"""Progress bars of the first copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.cli.interrupt import Interrupt

if TYPE_CHECKING:
    from penstock.control.home import Home
    from penstock.control.running import Running

__all__ = ["show_copy"]


def show_copy(console: Console, home: Home, running: Running, interrupt: Interrupt) -> None:
    """Wait until every table is copied, with a bar for each that is being copied."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tables = progress.add_task("copying tables", total=None)
        bars: dict[str, TaskID] = {}
        while not interrupt.wait(0.25):
            running.check()
            copied, total = running.copied_tables()
            progress.update(tables, completed=copied, total=total)
            if copied == total:
                return
            _update(progress, bars, home)


def _update(progress: Progress, bars: dict[str, TaskID], home: Home) -> None:
    now = {name: rows for source in home.sources() for name, rows in home.copied(source).items()}
    for name, (rows, total) in now.items():
        if name not in bars:
            bars[name] = progress.add_task(f"  {name}, rows", total=total)
        progress.update(bars[name], completed=rows, total=total)
    for name in set(bars) - set(now):
        progress.remove_task(bars.pop(name))
