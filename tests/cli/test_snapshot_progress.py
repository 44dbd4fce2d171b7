"""The progress bars of snapshots."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress, TaskID

from penstock.catalog.progress import CopyProgress
from penstock.cli.snapshot_progress import update_bars


def test_bars_follow_snapshots_and_show_rows_and_bytes() -> None:
    progress = Progress(console=Console(file=io.StringIO()))
    bars: dict[str, TaskID] = {}
    update_bars(progress, bars, {"shop.a": CopyProgress(waiting="waiting for pid 7")})
    assert [task.fields["size"] for task in progress.tasks] == ["waiting for pid 7"]
    update_bars(progress, bars, {"shop.a": CopyProgress(5, 1000, 10, 2000), "shop.b": CopyProgress()})
    first, second = progress.tasks
    assert (first.completed, first.total, first.fields["size"]) == (5, 10, "1.0 kB of 2.0 kB")
    assert "shop.b" in second.description
    update_bars(progress, bars, {"shop.b": CopyProgress(1, 1, 1, 1)})
    assert list(bars) == ["shop.b"]
    assert [task.completed for task in progress.tasks] == [1]
