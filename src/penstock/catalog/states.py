"""The states of sources and tables: durable, each set by one place in the code."""

from __future__ import annotations

import enum

__all__ = ["SourceState", "TableState"]


class SourceState(enum.StrEnum):
    """Where a source stands."""

    CREATING = "creating"
    """Set by `create` before anything is made outside. Met at a start, it is undone: the process died in between."""
    READY = "ready"
    """Set by `create` when slot, publication and log are there. Capture may run."""
    FAILED = "failed"
    """Set by capture at a definite error of the whole source; back to ready when capture is started again."""
    DROPPING = "dropping"
    """Set by `drop` before anything is removed. Met at a start, the removal is finished."""


class TableState(enum.StrEnum):
    """Where a table stands."""

    PENDING = "pending"
    """Set by `create`: its first copy is not whole yet, it cannot be read."""
    LIVE = "live"
    """Set when its first copy is whole: readable at every position from there on."""
    RETRYING = "retrying"
    """Set by `RETRY TABLE`. Whoever runs the home captures the table anew and makes it pending."""
    FAILED = "failed"
    """Set at a definite error of this table: readable before it, if it was live."""
