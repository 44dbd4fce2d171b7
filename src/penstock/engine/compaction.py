"""Scheduling of compaction and vacuum for the base tables of a source: concurrent with apply, one table at a time.

A table is examined after a number of commits, and files that many commits have fragmented are rewritten: one bounded
step, then apply may write again. After each run, the table rests for ten times as long as the run took. Files that no
reader needs are removed once an hour.

Apply skips a table while it is being compacted, and continues with the others. Compaction cannot fail a table: errors
are reported, and the next run tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.instruments import COMPACTION_SECONDS
from penstock.engine.table import Progress, RunningTable
from penstock.event_log import Event
from penstock.spark.worker_errors import brief
from penstock.tables.interface import Compaction, TableStore

__all__ = ["COMMITS", "FIRST_VACUUM_SECONDS", "VACUUM_SECONDS", "Compactor", "Schedule"]

COMMITS = 20
"""The number of commits between two runs for a table."""
_REST, _SHORTEST_REST = 10.0, 30.0
"""The rest after a run, as a multiple of its duration, and the minimum in seconds."""
VACUUM_SECONDS = 3600.0
FIRST_VACUUM_SECONDS = 600.0
"""The first vacuum comes earlier, because a home may run for less than an hour at a time."""


@dataclass
class Schedule:
    """When one table is compacted and vacuumed next; times are seconds of a monotonic clock."""

    started: float
    examined: int = 0
    """The Delta version at the last run."""
    resting_until: float = 0.0
    vacuumed: float | None = None
    oldest_needed: int | None = None
    """The oldest version that readers needed at the last vacuum."""

    def rewrite_is_due(self, version: int, now: float) -> bool:
        """Whether to look for fragmented files."""
        return version >= self.examined + COMMITS and now >= self.resting_until

    def vacuum_is_due(self, now: float) -> bool:
        """Whether to look for files that no reader needs."""
        due = self.started + FIRST_VACUUM_SECONDS if self.vacuumed is None else self.vacuumed + VACUUM_SECONDS
        return now >= max(due, self.resting_until)

    def rest(self, started: float, ended: float) -> None:
        """Start the rest after a run."""
        self.resting_until = ended + max(_REST * (ended - started), _SHORTEST_REST)


class Compactor:
    """Compacts and vacuums the tables of one source when that is due."""

    def __init__(self, store: TableStore, report: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._report = report
        self._clock = clock
        self._schedules: dict[RunningTable, Schedule] = {}

    def compact_if_due(self, table: RunningTable, *, rewrite: bool = True) -> None:
        """Compact and vacuum a table if that is due, unless another thread writes to it; or only vacuum it."""
        schedule = self._schedules.setdefault(table, Schedule(self._clock()))
        at, now = table.at, self._clock()
        rewrite = rewrite and at is not None and schedule.rewrite_is_due(at.version, now)
        if at is None or not (rewrite or schedule.vacuum_is_due(now)):
            return
        if not table.writing.acquire(blocking=False):
            return
        try:
            self._do(table, schedule, rewrite=rewrite)
        except Exception as error:
            message = f"compaction of {table.record.upstream} failed, will retry: {brief(error)}"
            self._report(Event(message, "compaction_failed", table=table.record.upstream))
        finally:
            table.writing.release()
            schedule.rest(now, self._clock())
            COMPACTION_SECONDS.labels(table.record.source).observe(self._clock() - now)

    def forget_all_but(self, tables: list[RunningTable]) -> None:
        """Drop the schedules of all tables but these."""
        self._schedules = {table: found for table, found in self._schedules.items() if table in tables}

    def _do(self, table: RunningTable, schedule: Schedule, *, rewrite: bool) -> None:
        if table.gone or table.at is None:
            return
        compaction = self._store.compaction(table.base)
        if rewrite:
            if compaction.rewrite(table.at):
                table.load_state()
            else:
                schedule.examined = table.at.version
        if schedule.vacuum_is_due(self._clock()):
            self._vacuum(table, schedule, compaction)

    def _vacuum(self, table: RunningTable, schedule: Schedule, compaction: Compaction) -> None:
        oldest = table.catalog.bases.oldest_version(table.record.source, table.record.local)
        if oldest is not None and oldest != schedule.oldest_needed:
            compaction.vacuum(oldest)
            table.load_state()
        schedule.oldest_needed, schedule.vacuumed = oldest, self._clock()
