"""The states of sources and tables. All are durable: they are in the catalog, and whoever starts next finds them.

The same words are shown everywhere: `penstock status`, `SHOW SOURCES`, `SHOW TABLES`, the status page, the metrics.
"""

from __future__ import annotations

import enum

__all__ = ["WISHES", "SourceState", "TableState"]


class SourceState(enum.StrEnum):
    """Where a source stands.

    ::

        CREATE ─▶ creating ─── all of it is made ───▶ ready ◀── capture connects ──┐
                     │                                  │ └─ a definite error ─▶ failed
                     │ it failed, or its process died   │ DROP                     │ DROP
                     └─────────────▶ dropping ◀─────────┴──────────────────────────┘
                                        └─ nothing is left of it, here and upstream ─▶ (gone)
    """

    CREATING = "creating"
    """Set by `create`, with all that it is going to make, before anything is made outside. Where its process died, it
    is undone: by whoever runs the home, or at the next start."""
    READY = "ready"
    """Set by `create` when slot, publication and log are there; whoever runs the home captures it. An error beside it
    is transient: it is tried again."""
    FAILED = "failed"
    """Set by capture at a definite error of the whole source; back to ready when capture is started again, and
    connects. Also set when capture breaks off or dies again and again without getting on: it is still tried, once a
    minute, and back to ready when it gets on."""
    DROPPING = "dropping"
    """Set by `drop` before anything is removed, together with whether the base tables stay. Whoever runs the home lets
    go of it. Where the process died that drops it, or Postgres could not be reached, whoever runs the home or starts
    next finishes that."""


class TableState(enum.StrEnum):
    """Where a table stands.

    ::

        CREATE ──────────────────────────┐
        ADD TABLE ─▶ adding ─ captured ──┴─▶ pending ─ its copy is whole ─▶ live ─ a definite error ─▶ failed
                                                ▲                            │                            │
                                                └─ captured anew ─ retrying ◀┴──────── RETRY TABLE ───────┘
        DROP TABLE, from any of them ─▶ dropping ─▶ (gone)
    """

    ADDING = "adding"
    """A wish, set by `ADD TABLE`. Whoever runs the home publishes and captures the table and makes it pending."""
    PENDING = "pending"
    """Set by `create`, or when a wish to add or retry is carried out: its copy is not whole yet, it cannot be read.
    An error beside it is tried again."""
    LIVE = "live"
    """Set when its first copy is whole: readable at every position from there on. An error beside it says why apply
    does not get on with it; it is tried again, and readable meanwhile."""
    RETRYING = "retrying"
    """A wish, set by `RETRY TABLE`. Whoever runs the home captures the table anew and makes it pending."""
    DROPPING = "dropping"
    """A wish, set by `DROP TABLE`: it cannot be read any more. Whoever runs the home removes what there is of it."""
    FAILED = "failed"
    """Set at a definite error of this table: readable before it, if it was live. A repair may make it live again."""


WISHES = (TableState.ADDING, TableState.RETRYING, TableState.DROPPING)
"""States that only give way when what they ask for is carried out, or to another wish."""
