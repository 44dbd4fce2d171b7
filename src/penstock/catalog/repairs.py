"""Repairs: what was asked for, by whom, and what came of it. Durable, in the catalog's file.

A repair is asked for by anybody and done by whoever runs the home. It stays here afterwards, as a record.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

from penstock.catalog.store import Catalog
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Repair", "RepairState", "Repairs"]

_COLUMNS = (
    "id, source, schema_name, table_name, chosen, asked_by, asked_at, state, low, high, rows_read, rows_changed,"
    " error, hint, ended_at"
)


class RepairState(enum.StrEnum):
    """Where a repair stands."""

    ASKED = "asked"
    """Set by whoever wants it. Met at a start, it is done, from its beginning."""
    DONE = "done"
    """Set in the process that runs the home, after the commit that puts the rows right."""
    FAILED = "failed"
    """Set there, when it cannot be done: the error says why. Nothing was changed."""


@dataclass(frozen=True)
class Repair:
    """A repair of some rows of a table; `low` and `high` are where its windows lie in the stream."""

    id: int
    source: str
    table: TableName
    chosen: dict[str, Any]
    """Which rows: ``{"keys": [[…], …]}``, ``{"where": "…"}`` or ``{"all": true}``."""
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

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def ask(self, source: str, table: TableName, chosen: dict[str, Any], asked_by: str) -> Repair:
        """Note that rows shall be put right."""
        query = "INSERT INTO repair (source, schema_name, table_name, chosen, asked_by) VALUES (?, ?, ?, ?, ?)"
        with self._catalog.transaction() as db:
            made = db.execute(query, (source, table.schema, table.name, json.dumps(chosen), asked_by)).lastrowid
        return self.get(made or 0)

    def get(self, number: int) -> Repair:
        """Return one of them."""
        return next(repair for repair in self._select("WHERE id = ?", number))

    def waiting(self, source: str) -> list[Repair]:
        """Return those that are still to be done, the oldest first."""
        return self._select("WHERE source = ? AND state = 'asked' ORDER BY id", source)

    def all(self) -> list[Repair]:
        """Return all of them, the newest first."""
        return self._select("ORDER BY id DESC")

    def done(self, repair: Repair, low: Lsn, high: Lsn, rows_read: int, rows_changed: int) -> None:
        """Note that rows are right now."""
        self._end(repair, RepairState.DONE, low, high, rows_read, rows_changed, None, None)

    def failed(self, repair: Repair, error: str, hint: str) -> None:
        """Note why it cannot be done."""
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
