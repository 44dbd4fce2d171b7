"""The states of sources and tables: durable, each set by one place in the code."""

from __future__ import annotations

import enum

__all__ = ["WISHES", "SourceState", "TableState"]


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

    ADDING = "adding"
    """A wish, set by `ADD TABLE`. Whoever runs the home publishes and captures the table and makes it pending."""
    PENDING = "pending"
    """Set by `create`, or when a wish to add or retry is carried out: its copy is not whole yet, it cannot be read."""
    LIVE = "live"
    """Set when its first copy is whole: readable at every position from there on."""
    RETRYING = "retrying"
    """A wish, set by `RETRY TABLE`. Whoever runs the home captures the table anew and makes it pending."""
    DROPPING = "dropping"
    """A wish, set by `DROP TABLE`: it cannot be read any more. Whoever runs the home removes what there is of it."""
    FAILED = "failed"
    """Set at a definite error of this table: readable before it, if it was live."""


WISHES = (TableState.ADDING, TableState.RETRYING, TableState.DROPPING)
"""States that only give way when what they ask for is carried out, or to another wish."""
