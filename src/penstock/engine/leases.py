"""Leases for live views: history is retained while a view exists, and until its lease expires.

A view needs the log after its oldest base. All views of a home share one lease per log, at the oldest position that
any of them needs; bases are retained with the log (see `retention`). One thread renews the leases, and ends when no
view is left. A DataFrame of a view may outlive the view, so the history stays until the lease expires, unless the view
was closed. The leases of a process that dies expire, too.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from penstock.changelog.interface import ChangeLog
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn

__all__ = ["Held", "LeaseKeeper"]

_LEASE_SECONDS = 600.0
_POLL_SECONDS = 5.0
_NUMBERS = itertools.count(1)


@dataclass
class _Need:
    """A position after which the log is needed: the views that need it, and when the last unclosed one was deleted."""

    views: set[int] = field(default_factory=set)
    last: float = -_LEASE_SECONDS


class Held:
    """The positions that one view needs. They remain needed for a while after its deletion, unless it was closed."""

    def __init__(self, view: object) -> None:
        self._number = next(_NUMBERS)
        self._needs: list[_Need] = []
        # The finalizer may run in any thread, at any point: it takes no lock.
        self._finalizer = weakref.finalize(view, _outlive, self._number, self._needs)

    def add(self, need: _Need) -> None:
        """Add a position."""
        need.views.add(self._number)
        self._needs.append(need)

    def close(self) -> None:
        """End the needs at once: neither the view nor any of its DataFrames will be read any more."""
        if self._finalizer.detach() is not None:
            for need in self._needs:
                need.views.discard(self._number)


def _outlive(view: int, needs: Sequence[_Need]) -> None:
    """Note that a view was deleted: its DataFrames may still be read."""
    for need in needs:
        need.last = time.monotonic()
        need.views.discard(view)


@dataclass
class _Lease:
    """The lease on one log."""

    log: ChangeLog
    name: str
    needs: dict[Lsn, _Need] = field(default_factory=dict)
    at: Lsn | None = None
    until: float = 0.0

    def need(self, at: Lsn) -> _Need:
        """Return the entry of a position; create it if there is none."""
        return self.needs.setdefault(at, _Need())

    def is_used(self) -> bool:
        """Drop the positions that are no longer needed; return whether a view exists."""
        now = time.monotonic()
        needs = self.needs.items()
        self.needs = {at: need for at, need in needs if need.views or now < need.last + _LEASE_SECONDS}
        return any(need.views for need in self.needs.values())

    def renew(self, *, exactly: bool = False) -> None:
        """Lease the oldest needed position that is still valid, unless the current lease suffices.

        A lease at an earlier position suffices, too, if not `exactly` the oldest is wanted.
        """
        oldest = min(self.needs)
        held = self.at is not None and (self.at == oldest if exactly else self.at <= oldest)
        if held and time.monotonic() < self.until - _LEASE_SECONDS / 2:
            return
        with closing(self.log.reader()) as reader:
            valid = reader.frontiers().valid
            self.needs = {at: need for at, need in self.needs.items() if at >= valid}
            self.at = min(self.needs, default=None)
            reader.set_lease(self.name, self.at, _LEASE_SECONDS)
        self.until = time.monotonic() + _LEASE_SECONDS

    def end(self) -> None:
        """Release the log."""
        with suppress(Exception), closing(self.log.reader()) as reader:  # otherwise it expires
            reader.set_lease(self.name, None)
        self.at = None

    def holds(self, at: Lsn) -> bool:
        """Return whether the lease retains the log after a position."""
        return self.at is not None and self.at <= at


class LeaseKeeper:
    """Holds and renews the leases of the live views of one home."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._leases: dict[str, _Lease] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def hold(self, view: object, needed: Mapping[str, Lsn], logs: Mapping[str, ChangeLog]) -> Held:
        """Retain the logs after these positions for as long as `view` lives, or raise `HistoryExpiredError`."""
        held = Held(view)
        with self._lock:
            for source, at in needed.items():
                lease = self._leases.setdefault(source, _Lease(logs[source], self._name))
                held.add(lease.need(at))
                lease.is_used()
                lease.renew()
                if not lease.holds(at):
                    message = f"source {source} no longer has the history after {at}"
                    raise HistoryExpiredError(
                        message, "Choose a later position: `penstock status` shows where the history begins."
                    )
            if self._thread is None and needed:
                self._thread = threading.Thread(target=self._renew_until_unused, name="penstock-keep", daemon=True)
                self._thread.start()
        return held

    def forget(self, source: str) -> None:
        """Release the lease on a source: it was dropped, and another may get its name."""
        with self._lock:
            self._leases.pop(source, None)

    def release(self) -> None:
        """Release all leases; views that still exist lose their history."""
        with self._lock:
            for lease in self._leases.values():
                lease.end()
            self._leases.clear()

    def _renew_until_unused(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            with self._lock:
                used = [lease for lease in self._leases.values() if lease.is_used()]
                for lease in self._leases.values():
                    if not lease.needs and lease.at is not None:
                        lease.end()
                if not used:
                    self._thread = None
                    return
                for lease in used:
                    with suppress(Exception):  # readers get the log's error themselves; keep renewing the others
                        lease.renew(exactly=True)
