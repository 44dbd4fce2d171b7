"""Keeping history for live views: for as long as somebody has one, and a while longer.

A view needs the log after its oldest base. All views of a home share one lease per log, at the oldest position that
any of them needs; bases are kept with the log (see `retention`). One thread renews leases, and ends when no view is
left. A DataFrame of a view may outlive it: what a view needed is kept until its lease has run out. A process that dies
renews nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field

from penstock.changelog.interface import ChangeLog
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn

__all__ = ["Keeper"]

_LEASE_SECONDS = 600.0
_LOOK_SECONDS = 5.0
_NUMBERS = itertools.count(1)


@dataclass
class _Need:
    """A position after which the log is needed: by which views, and when there last was one."""

    views: set[int] = field(default_factory=set)
    last: float = 0.0


@dataclass
class _Lease:
    """The lease on one log."""

    log: ChangeLog
    name: str
    needs: dict[Lsn, _Need] = field(default_factory=dict)
    at: Lsn | None = None
    until: float = 0.0

    def need(self, at: Lsn) -> _Need:
        """Return what is known of a position, new or not."""
        return self.needs.setdefault(at, _Need())

    def is_used(self) -> bool:
        """Note which positions are needed now, forget those that no longer are; say whether there is a view."""
        now = time.monotonic()
        for need in self.needs.values():
            need.last = now if need.views else need.last
        self.needs = {at: need for at, need in self.needs.items() if now < need.last + _LEASE_SECONDS}
        return any(need.views for need in self.needs.values())

    def renew(self) -> None:
        """Pin the oldest position that is needed and still there, unless that is so for long enough already."""
        held = self.at is not None and self.at <= min(self.needs)
        if held and time.monotonic() < self.until - _LEASE_SECONDS / 2:
            return
        with closing(self.log.reader()) as reader:
            valid = reader.frontiers().valid
            self.needs = {at: need for at, need in self.needs.items() if at >= valid}
            self.at = min(self.needs, default=None)
            reader.pin(self.name, self.at, _LEASE_SECONDS)
        self.until = time.monotonic() + _LEASE_SECONDS

    def holds(self, at: Lsn) -> bool:
        """Say whether the log is kept after a position."""
        return self.at is not None and self.at <= at


class Keeper:
    """Keeps what the views of one home need."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._leases: dict[str, _Lease] = {}
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    def hold(self, view: object, needed: Mapping[str, Lsn], logs: Mapping[str, ChangeLog]) -> None:
        """Keep the logs after these positions for as long as `view` lives, or raise `HistoryExpiredError`."""
        with self._changing:
            for source, at in needed.items():
                lease = self._leases.setdefault(source, _Lease(logs[source], self._name))
                need, number = lease.need(at), next(_NUMBERS)
                need.views.add(number)
                # What ends a view may run in any thread, at any point: it takes no lock.
                weakref.finalize(view, need.views.discard, number)
                lease.is_used()
                lease.renew()
                if not lease.holds(at):
                    message = f"source {source} no longer has the history after {at}"
                    raise HistoryExpiredError(
                        message, "Ask for a later position: see `penstock status` for where it begins."
                    )
            if self._thread is None and needed:
                self._thread = threading.Thread(target=self._keep, name="penstock-keep", daemon=True)
                self._thread.start()

    def forget(self, source: str) -> None:
        """Keep nothing more of a source: it was dropped, and another may get its name."""
        with self._changing:
            self._leases.pop(source, None)

    def _keep(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._changing:
                used = [lease for lease in self._leases.values() if lease.is_used()]
                if not used:
                    self._thread = None
                    return
                for lease in used:
                    with suppress(Exception):  # whoever reads will be told what is wrong with the log; it goes on
                        lease.renew()
