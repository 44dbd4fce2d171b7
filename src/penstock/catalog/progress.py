"""Progress of snapshots: recorded in the catalog by the process that copies, read by status and progress bars.

There is one row per table whose snapshot, parallel or incremental, is in progress. `Catalog.note_progress` adds it,
its counts only grow, and `Catalog.forget_progress` removes it. Totals are estimates, and are raised to the number
copied when that is larger.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROGRESS_TABLE", "CopyProgress"]

PROGRESS_TABLE = """
CREATE TABLE copy_progress (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, local TEXT NOT NULL, rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL, total_rows INTEGER NOT NULL, total_bytes INTEGER NOT NULL, waiting TEXT,
    PRIMARY KEY (source, local))
"""


@dataclass(frozen=True)
class CopyProgress:
    """The rows and bytes of a table that have been copied, and the estimated totals."""

    rows: int = 0
    bytes: int = 0
    """As sent by Postgres."""
    total_rows: int = 0
    total_bytes: int = 0
    """The size of the table on disk upstream."""
    waiting: str | None = None
    """The reason why the snapshot has not begun yet."""
