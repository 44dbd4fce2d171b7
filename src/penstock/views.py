"""Creation of live views: choose the position of each source, and lease the history that reading it needs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.catalog.store import Catalog
from penstock.engine.as_of import AsOf, Chosen, choose_positions, requested_positions, seconds
from penstock.engine.leases import LeaseKeeper
from penstock.engine.retention import oldest_base
from penstock.engine.table_names import runnable_sources
from penstock.errors import HistoryExpiredError
from penstock.positions import Lsn

if TYPE_CHECKING:
    from penstock.live import Live
    from penstock.tables.interface import TableStore

__all__ = ["Views"]

_ATTEMPTS = 3


class Views:
    """The live views of one home."""

    def __init__(self, home: Path, catalog: Catalog) -> None:
        self._home = home
        self._catalog = catalog
        self._keeper = LeaseKeeper(f"live {uuid.uuid4().hex[:12]}")

    def live(
        self,
        store: TableStore,
        as_of: AsOf | None = None,
        wait: float | timedelta | None = None,
        attempts: int = _ATTEMPTS,
    ) -> Live:
        """Return a view of all tables, each source at the position to which `as_of` resolves.

        History may expire between choosing a position and leasing it; then choose again, up to `attempts` times.
        """
        from penstock.live import Live

        records = runnable_sources(self._catalog)
        requested = requested_positions(
            as_of, [r.name for r in records], {r.name: r.part_of for r in records if r.part_of}
        )
        logs = {record.name: self._catalog.log(record.name) for record in records}
        chosen = choose_positions(logs, requested, seconds(wait))
        positions = {source: found.position for source, found in chosen.items()}
        view = Live(
            self._home, self._catalog, store, positions, _timestamp(requested, chosen), partial(self.live, store)
        )
        try:
            view.held = self._keeper.hold(view, self._needed(chosen), logs)
        except HistoryExpiredError:  # removed just before the lease
            if attempts == 1:
                raise
            return self.live(store, as_of, wait, attempts - 1)
        return view

    def undated(self, store: TableStore) -> Live:
        """Return a view without positions: it has the names and columns of tables, and cannot be read."""
        from penstock.live import Live

        return Live(self._home, self._catalog, store, {}, None, partial(self.live, store))

    def forget(self, source: str) -> None:
        """Release the leases on a source that was dropped."""
        self._keeper.forget(source)

    def release(self) -> None:
        """Release the leases of all views."""
        self._keeper.release()

    def _needed(self, chosen: Mapping[str, Chosen]) -> dict[str, Lsn]:
        """Return the positions after which the logs are needed; the base of a failed table may be before `valid`."""
        oldest = {source: oldest_base(self._catalog, source, found.position) for source, found in chosen.items()}
        return {source: Lsn(max(at, chosen[source].frontiers.valid)) for source, at in oldest.items()}


def _timestamp(requested: Mapping[str, Lsn | datetime | None], chosen: Mapping[str, Chosen]) -> datetime | None:
    """Return the requested timestamp; for a view as of now, the last commit time."""
    timestamps = [want for want in requested.values() if isinstance(want, datetime)]
    if not any(want is not None for want in requested.values()):
        commit_times = (found.frontiers.committed_at for found in chosen.values())
        timestamps = [timestamp for timestamp in commit_times if timestamp is not None]
    return max(timestamps, default=None)
