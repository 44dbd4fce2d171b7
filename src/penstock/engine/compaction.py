"""When the base tables of a source are looked after: beside apply, one table at a time.

A table is looked at when some commits have come since the last look, and what wears with commits (see `worn_files`) is
written anew: one bounded step, then apply has its turn again. A look that costs rests ten times as long. Files that
nobody needs are removed once an hour.

Apply leaves a table out while it is being looked after, and goes on with the others. Nothing here can fail a table:
what went wrong is told, and tried again at the next look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.table import FollowedTable, Progress
from penstock.spark.boundary import brief
from penstock.tables.interface import Compaction, TableStore

__all__ = ["COMMITS", "FIRST_VACUUM_SECONDS", "VACUUM_SECONDS", "Schedule", "Upkeeping"]

COMMITS = 20
"""So many commits come between two looks."""
_REST, _SHORTEST_REST = 10.0, 30.0
"""A rest is this many times as long as the look before it, and so many seconds at least."""
VACUUM_SECONDS = 3600.0
FIRST_VACUUM_SECONDS = 600.0
"""A home may run for less than an hour at a time."""


@dataclass
class Schedule:
    """When one table is looked after next; moments are in seconds, of a clock that only goes on."""

    begun: float
    looked: int = 0
    """The version at the last look."""
    rests_until: float = 0.0
    vacuumed: float | None = None
    kept: int | None = None
    """The oldest version that was needed when files were removed last."""

    def rewrite_is_due(self, version: int, now: float) -> bool:
        """Whether to look for worn files."""
        return version >= self.looked + COMMITS and now >= self.rests_until

    def vacuum_is_due(self, now: float) -> bool:
        """Whether to look for files that nobody needs."""
        due = self.begun + FIRST_VACUUM_SECONDS if self.vacuumed is None else self.vacuumed + VACUUM_SECONDS
        return now >= max(due, self.rests_until)

    def rest(self, begun: float, ended: float) -> None:
        """Note how long a look took."""
        self.rests_until = ended + max(_REST * (ended - begun), _SHORTEST_REST)


class Upkeeping:
    """Looks after the tables of one source."""

    def __init__(self, store: TableStore, tell: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._tell = tell
        self._clock = clock
        self._schedules: dict[FollowedTable, Schedule] = {}

    def look_after(self, table: FollowedTable) -> None:
        """Do what is due for a table, unless somebody writes to it."""
        schedule = self._schedules.setdefault(table, Schedule(self._clock()))
        at, now = table.at, self._clock()
        if at is None or not (schedule.rewrite_is_due(at.version, now) or schedule.vacuum_is_due(now)):
            return
        if not table.writing.acquire(blocking=False):
            return
        try:
            self._do(table, schedule)
        except Exception as error:
            self._tell(f"the files of {table.record.upstream} could not be put in order, trying later: {brief(error)}")
        finally:
            table.writing.release()
            schedule.rest(now, self._clock())

    def forget_all_but(self, tables: list[FollowedTable]) -> None:
        """Let go of tables that are no longer followed."""
        self._schedules = {table: found for table, found in self._schedules.items() if table in tables}

    def _do(self, table: FollowedTable, schedule: Schedule) -> None:
        if table.gone or table.at is None:
            return
        upkeep = self._store.compaction(table.base)
        if schedule.rewrite_is_due(table.at.version, self._clock()):
            if upkeep.rewrite(table.at):
                table.look_up()
            else:
                schedule.looked = table.at.version
        if schedule.vacuum_is_due(self._clock()):
            self._vacuum(table, schedule, upkeep)

    def _vacuum(self, table: FollowedTable, schedule: Schedule, upkeep: Compaction) -> None:
        oldest = table.catalog.bases.oldest_version(table.record.source, table.record.local)
        if oldest is not None and oldest != schedule.kept:
            upkeep.vacuum(oldest)
            table.look_up()
        schedule.kept, schedule.vacuumed = oldest, self._clock()
