"""How far copies are: what the process that copies notes in the catalog, for status and bars in any process.

One row per table that is being copied, parallel or in chunks. It appears with `note`, only ever grows, and is gone with
`forget`. Totals are estimates: when more than that has come, they are what has come.
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
    """What has been copied of a table, and about how much there is."""

    rows: int = 0
    bytes: int = 0
    """As Postgres sent them."""
    total_rows: int = 0
    total_bytes: int = 0
    """As the table lies on disk upstream."""
    waiting: str | None = None
    """What the copy waits for, before it begins."""
