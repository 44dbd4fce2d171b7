"""What an upstream system reports about itself and about what it retains for a source: for status and alarms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.positions import Lsn

__all__ = ["SlotStatus", "UpstreamStatus", "UpstreamWatch"]


@dataclass(frozen=True)
class SlotStatus:
    """The slot that a source reads; while it exists, the server retains what the source has not confirmed.

    `active` is whether a session reads it. `wal_status` is that of Postgres: ``reserved``, ``extended``,
    ``unreserved`` (about to be invalidated) or ``lost``; None if the slot does not exist. `retained_bytes` is the WAL
    that the server retains for it, and `safe_bytes` how much can still be written until it may be invalidated; None if
    there is no limit. `confirmed` is the position up to which the source has confirmed, and `invalidated` the reason
    why the server invalidated the slot, if it did.
    """

    name: str
    active: bool
    wal_status: str | None
    retained_bytes: int | None
    safe_bytes: int | None
    confirmed: str | None
    invalidated: str | None = None


@dataclass(frozen=True)
class UpstreamStatus:
    """The answer of an upstream system."""

    end: Lsn
    """The position up to which changes can be read now."""
    clock_skew_ms: float | None = None
    """How far its clock is ahead of the clock of this machine; None if it has no clock."""
    slot: SlotStatus | None = None


class UpstreamWatch(Protocol):
    """Asks an upstream system repeatedly; one thread at a time."""

    def status(self) -> UpstreamStatus | None:
        """Ask it; None if it does not answer, or cannot report anything."""

    def close(self) -> None:
        """Close the connection, if there is one."""
