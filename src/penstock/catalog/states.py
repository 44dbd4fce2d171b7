"""The states of sources, tables and sinks. All are durable: the catalog stores them, and they survive a restart.

The same words appear everywhere: in `penstock status`, `SHOW SOURCES`, `SHOW TABLES`, the status page and the metrics.
"""

from __future__ import annotations

import enum

__all__ = ["REQUESTS", "SinkState", "SourceState", "TableState"]


class SourceState(enum.StrEnum):
    """The state of a source.

    ::

        CREATE ─▶ creating ── all objects created ──▶ ready ◀── capture connects ──┐
                     │                                  │ └─ permanent error ──▶ failed
                     │ create fails, or its process dies│ DROP                     │ DROP
                     └─────────────▶ dropping ◀─────────┴──────────────────────────┘
                                        └─ all objects removed, here and upstream ─▶ (removed)
    """

    CREATING = "creating"
    """Set by `create`, with the list of objects to create, before any of them is created upstream. If that process
    dies, the create is rolled back: by the running home, or at the next start."""
    READY = "ready"
    """Set by `create` when slot, publication and log exist; the running home captures the source. An error in this
    state is transient: the operation is retried."""
    FAILED = "failed"
    """Set by capture at a permanent error of the whole source; back to `ready` when capture is restarted and connects.
    Also set when capture fails or dies repeatedly without making progress: it is retried once a minute, and back to
    `ready` when it makes progress."""
    DROPPING = "dropping"
    """Set by `drop` before anything is removed, together with whether to keep the base tables. The running home stops
    the source. If the process that drops it dies, or Postgres is unreachable, the running home or the next start
    completes the drop."""


class TableState(enum.StrEnum):
    """The state of a table.

    ::

        CREATE ──────────────────────────┐
        ADD TABLE ─▶ adding ─ captured ──┴─▶ pending ─ snapshot complete ─▶ live ─ permanent error ─▶ failed
                                              ▲  │                          │ ▲                        ▲  │
                                              │  └──── permanent error ─────┼─┼────────────────────────┘  │
                                              │                             │ └── REPAIR, new options ────┤
                                              └─ captured again ─ retrying ◀┴───────── RETRY TABLE ───────┘
        CREATE, adding, retrying ─ the table cannot be captured ─▶ failed
        DROP TABLE, from any state ─▶ dropping ─▶ (removed)
    """

    ADDING = "adding"
    """A request, set by `ADD TABLE`. The running home publishes and captures the table, and sets it to `pending`."""
    PENDING = "pending"
    """Set by `create`, or when a request to add or retry has been executed: the snapshot is not complete. The
    table is not readable yet; one that is captured again has its last consistent state. A transient error in this state
    is retried; at a permanent error, the table has failed."""
    LIVE = "live"
    """Set when the initial snapshot is complete: readable at every position from there on. Also set when a failed table
    is repaired, or resumes with other options for rejected messages. An error in this state says why apply does not
    advance; it is retried, and the table stays readable."""
    RETRYING = "retrying"
    """A request, set by `RETRY TABLE`, or after a schema change (`on schema change = 'resnapshot'`). The running home
    captures the table again, and sets it to `pending`."""
    DROPPING = "dropping"
    """A request, set by `DROP TABLE`: the table is no longer readable. The running home removes its data."""
    FAILED = "failed"
    """Set at a permanent error of this table, before or after its snapshot is complete, and when the table cannot be
    captured at all: readable before the position of the error, if it was live. `RETRY TABLE` takes a new snapshot;
    a repair may make the table live again without one."""


REQUESTS = (TableState.ADDING, TableState.RETRYING, TableState.DROPPING)
"""States that are requests of a user: only executing the request, or another request, ends them."""


class SinkState(enum.StrEnum):
    """The state of a sink.

    ::

        CREATE SINK ─▶ running ◀── ALTER SINK, or the next start ──┐
                          │ └───────── permanent error ─────────▶ failed
                          │ DROP SINK                               │ DROP SINK
                          └──────────────▶ dropping ◀───────────────┘
                                              └─ no process uses it ─▶ (removed)
    """

    RUNNING = "running"
    """Set by `CREATE SINK` and `ALTER SINK`: the running home writes its messages. An error in this state is transient:
    the operation is retried."""
    FAILED = "failed"
    """Set by the running home at a permanent error of this sink; other sinks, capture and apply continue. It is tried
    again after `ALTER SINK`, and at the next start."""
    DROPPING = "dropping"
    """Set by `DROP SINK`. The running home stops the sink and releases its history; without one, that happens at
    once. Topics and their messages are kept."""
