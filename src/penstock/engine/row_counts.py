"""Counts the rows of base tables for the status, from the statistics of their files.

A count reads no row, but it is a small job of Spark, and one after every commit of every table would take much of a
core. So the tables that have changed take turns, those whose last count is oldest first, for a twentieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from penstock.engine.table import Progress, RunningTable
from penstock.event_log import Event
from penstock.spark.worker_errors import brief

__all__ = ["RowCounts"]

_SHARE = 0.05


class RowCounts:
    """Counts the rows of the tables of one source, and records them in the catalog."""

    def __init__(self, interval: float, report: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = interval * _SHARE
        self._report = report
        self._clock = clock
        self._counted: dict[RunningTable, tuple[float, int]] = {}
        """When each table was last counted, and the Delta version that it had then."""

    def count(self, tables: Sequence[RunningTable]) -> None:
        """Count tables that have changed, at least one, until the share of the interval is used."""
        self._counted = {table: found for table, found in self._counted.items() if table in tables}
        until = self._clock() + self._seconds
        for table in sorted((table for table in tables if self._is_due(table)), key=self._last):
            self._count(table)
            if self._clock() >= until:
                return

    def _is_due(self, table: RunningTable) -> bool:
        at = table.at
        return at is not None and not table.gone and self._counted.get(table, (0.0, -1))[1] != at.version

    def _last(self, table: RunningTable) -> float:
        return self._counted.get(table, (0.0, -1))[0]

    def _count(self, table: RunningTable) -> None:
        if (at := table.at) is None:  # released in between
            return
        record = table.record
        try:
            rows = table.base.count()
            if rows is not None and not table.gone:
                table.catalog.bases.note_rows(record.source, record.local, rows)
        except Exception as error:
            message = f"the rows of {record.upstream} could not be counted: {brief(error)}"
            self._report(Event(message, "count_failed", table=record.upstream))
        self._counted[table] = self._clock(), at.version
