"""Repair requests and their results, stored in the catalog.

Any process can request a repair; the process that runs the home executes it. The entry is kept as a record.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

from penstock.catalog.file import CatalogFile
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Repair", "RepairState", "Repairs"]

_COLUMNS = (
    "id, source, schema_name, table_name, chosen, asked_by, asked_at, state, low, high, rows_read, rows_changed,"
    " error, hint, ended_at"
)


class RepairState(enum.StrEnum):
    """The state of a repair."""

    ASKED = "asked"
    """Set by the process that requests the repair. The running home executes it, after a restart from the beginning."""
    DONE = "done"
    """Set by the process that runs the home, after the commit that replaces the rows."""
    FAILED = "failed"
    """Set by the process that runs the home if the repair is impossible: the error says why. Nothing was changed."""


@dataclass(frozen=True)
class Repair:
    """A repair of some rows of a table; its watermark windows are between the positions `low` and `high`."""

    id: int
    source: str
    table: TableName
    chosen: dict[str, Any]
    """The selected rows: ``{"keys": [[…], …]}``, ``{"where": "…"}`` or ``{"all": true}``."""
    asked_by: str
    asked_at: str
    state: RepairState = RepairState.ASKED
    low: Lsn | None = None
    high: Lsn | None = None
    rows_read: int | None = None
    rows_changed: int | None = None
    error: str | None = None
    hint: str | None = None
    ended_at: str | None = None


class Repairs:
    """The repairs of a home."""

    def __init__(self, catalog: CatalogFile) -> None:
        self._catalog = catalog

    def ask(self, source: str, table: TableName, chosen: dict[str, Any], asked_by: str) -> Repair:
        """Record a repair request."""
        query = "INSERT INTO repair (source, schema_name, table_name, chosen, asked_by) VALUES (?, ?, ?, ?, ?)"
        with self._catalog.transaction() as db:
            made = db.execute(query, (source, table.schema, table.name, json.dumps(chosen), asked_by)).lastrowid
        return self.get(made or 0)

    def get(self, number: int) -> Repair:
        """Return the repair with this id."""
        return next(repair for repair in self._select("WHERE id = ?", number))

    def waiting(self, source: str) -> list[Repair]:
        """Return the pending repairs of a source, oldest first."""
        return self._select("WHERE source = ? AND state = 'asked' ORDER BY id", source)

    def all(self) -> list[Repair]:
        """Return all repairs, newest first."""
        return self._select("ORDER BY id DESC")

    def done(self, repair: Repair, low: Lsn, high: Lsn, rows_read: int, rows_changed: int) -> None:
        """Record that a repair is done."""
        self._end(repair, RepairState.DONE, low, high, rows_read, rows_changed, None, None)

    def failed(self, repair: Repair, error: str, hint: str) -> None:
        """Record that a repair failed, and why."""
        self._end(repair, RepairState.FAILED, None, None, None, None, error, hint)

    def _end(self, repair: Repair, state: RepairState, *values: int | str | None) -> None:
        query = (
            "UPDATE repair SET state=?, low=?, high=?, rows_read=?, rows_changed=?, error=?, hint=?,"
            " ended_at=CURRENT_TIMESTAMP WHERE id=?"
        )
        with self._catalog.transaction() as db:
            db.execute(query, (state, *values, repair.id))

    def _select(self, rest: str, *arguments: Any) -> list[Repair]:
        with self._catalog.connected() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM repair {rest}", arguments).fetchall()
        return [_read(row) for row in rows]


def _read(row: tuple[Any, ...]) -> Repair:
    number, source, schema, name, chosen, asked_by, asked_at, state, low, high, *rest = row
    positions = (None if low is None else Lsn(low), None if high is None else Lsn(high))
    table = TableName(schema, name)
    return Repair(number, source, table, json.loads(chosen), asked_by, asked_at, RepairState(state), *positions, *rest)
