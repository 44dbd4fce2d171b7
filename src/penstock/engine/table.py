"""One table of a running source: its catalog record, its definition in capture, its base table and its position."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.error_policy import Tries
from penstock.errors import PenstockError, TableError
from penstock.layout import base_path, quarantine_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.produced_table import ProducedTable
from penstock.tables.base_state import State
from penstock.tables.interface import BaseTable, TableStore

__all__ = ["Progress", "RunningTable"]

Progress = Callable[[str], None]
"""Receives progress messages for people to read; an `Event` has fields in addition, for the log."""


class RunningTable:
    """A table that the engine snapshots, applies, repairs and compacts; each of these holds `writing` meanwhile."""

    def __init__(
        self, home: Path, catalog: Catalog, record: TableRecord, captured: ProducedTable, store: TableStore
    ) -> None:
        path = base_path(home, record.source, record.local).absolute()
        self.catalog = catalog
        self.record = record
        self.captured = captured
        self.quarantine = quarantine_path(home, record.source, record.local).absolute()
        """The folder of its rejected messages, if it quarantines them."""
        self.base: BaseTable = store.base(path, captured.table_schema())
        self.at: State | None = None
        """The last state read from its Delta log; None while its snapshot is not complete."""
        self.applied: Lsn | None = None
        """The position up to which all changes, if any, are applied; None before the first round of apply."""
        self.tried: ChangeLog | None = None
        """The log, with its options, with which apply last retried the table after it had failed."""
        self.tries = Tries()
        """The consecutive failures of its snapshot or apply."""
        self._has_error = record.error is not None
        """Whether the catalog may contain a transient error of the table, from this run or an earlier one."""
        self.writing = threading.Lock()
        self.gone = False
        """Whether it was released because it is dropped or captured again: it must not be written or recorded any more.
        Set while `writing` is held."""

    @property
    def name(self) -> TableName:
        """Its upstream name."""
        return self.record.upstream

    @property
    def local(self) -> str:
        """Its name in queries, without the source."""
        return self.record.local

    def state(self) -> TableState:
        """Return its state in the catalog; `failed` after its release, when the record belongs to a successor."""
        if self.gone:
            return TableState.FAILED
        for record in self.catalog.tables(self.record.source):
            if record.upstream == self.record.upstream:
                return record.state
        return TableState.FAILED

    def load_state(self) -> None:
        """Read the position of the base table from its Delta log, and record it in the catalog.

        The catalog may lack it: a process can die, or lose its connection to Spark, right after a commit.
        """
        if self.gone:
            return
        found = self.base.state()
        is_complete = found and found.window is None and found.generation == self.captured.generation
        self.at = found._replace(memory=self._memory(found)) if found and is_complete else None
        if self.at is not None:
            self.base.schema = self.at.schema
            base = BaseVersion(self.at.version, self.at.position, self.at.schema, self.at.memory)
            self.catalog.bases.note(self.record.source, self.record.local, base)
            if self.state() is TableState.PENDING:
                self.catalog.set_table(self.record.source, self.record.upstream, TableState.LIVE)

    def _memory(self, found: State) -> str | None:
        """Return the apply state of its last commit; the catalog keeps it, because Delta removes old commits."""
        if not self.captured.remembers():
            return None
        noted = self.catalog.bases.newest(self.record.source, self.record.local, found.position)
        is_current = noted is not None and noted.position == found.position and noted.version == found.version
        return noted.memory if noted is not None and is_current else self.base.memory(found.position)

    def advanced(self, at: State, durable: Lsn) -> State:
        """Return the state with a later position, if the catalog records that the table has no changes until then."""
        noted = self.catalog.bases.newest(self.record.source, self.record.local, durable)
        return at if noted is None else at._replace(position=Lsn(max(at.position, noted.position)))

    def revive(self) -> None:
        """Set the table to `live` again: its error is fixed."""
        if not self.gone:
            self.catalog.set_table(self.record.source, self.record.upstream, TableState.LIVE)

    def note_error(self, error: PenstockError) -> None:
        """Record a transient error; the state is unchanged."""
        if not self.gone:
            self._has_error = True
            self.catalog.note_table_error(self.record.source, self.record.upstream, error.message, error.hint)

    def clear_error(self) -> None:
        """Reset the failure count, and clear the transient error."""
        self.tries.worked()
        if self._has_error and not self.gone:
            self.catalog.note_table_error(self.record.source, self.record.upstream)
            self._has_error = False

    def fail(self, error: PenstockError) -> None:
        """Record a permanent error of the table."""
        if self.gone:
            return
        code = error.code if isinstance(error, TableError) else ""
        self.catalog.set_table(
            *(self.record.source, self.record.upstream, TableState.FAILED),
            error=error.message,
            hint=error.hint,
            code=code,
        )
