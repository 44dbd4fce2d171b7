"""One table of a source at work: its record, its capture, its base table, and where that stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.error_policy import Tries
from penstock.errors import PenstockError
from penstock.layout import base_path, quarantine_path
from penstock.positions import Lsn
from penstock.sources.interface import ProducedTable
from penstock.tables.base_state import State
from penstock.tables.interface import BaseTable, TableStore

__all__ = ["FollowedTable", "Progress"]

Progress = Callable[[str], None]
"""Told what is being done, for people to read."""


class FollowedTable:
    """A table that is copied, applied and mended; `writing` is held by whoever does one of these."""

    def __init__(
        self, home: Path, catalog: Catalog, record: TableRecord, captured: ProducedTable, store: TableStore
    ) -> None:
        path = base_path(home, record.source, record.local).absolute()
        self.catalog = catalog
        self.record = record
        self.captured = captured
        self.quarantine = quarantine_path(home, record.source, record.local).absolute()
        """Where goes what it refuses, if it does."""
        self.base: BaseTable = store.base(path, captured.table_schema())
        self.at: State | None = None
        """What its Delta log said last; None while there is no whole copy."""
        self.applied: Lsn | None = None
        """Up to where apply has taken it in, or nothing has happened to it; None before its first look."""
        self.tried: ChangeLog | None = None
        """How its log was read when it had failed and was last tried again."""
        self.tries = Tries()
        """How often copying or applying it has failed since it last worked."""
        self._troubled = record.error is not None
        """Whether there may be an error beside its state: of this run, or left by another."""
        self.writing = threading.Lock()
        self.gone = False
        """Whether it was let go, because it is dropped or captured anew: nothing may be done or noted for it any more.
        Set while `writing` is held."""

    def state(self) -> TableState:
        """Return what the catalog says of it; of one that was let go, that speaks of another by now."""
        if self.gone:
            return TableState.FAILED
        for record in self.catalog.tables(self.record.source):
            if record.upstream == self.record.upstream:
                return record.state
        return TableState.FAILED

    def look_up(self) -> None:
        """Ask the Delta log where the table stands, and note it in the catalog.

        The note may be missing: a process can die, or lose its connection to Spark, right after a commit.
        """
        if self.gone:
            return
        found = self.base.state()
        whole = found and found.window is None and found.generation == self.captured.generation
        self.at = found._replace(memory=self._memory(found)) if found and whole else None
        if self.at is not None:
            self.base.schema = self.at.schema
            base = BaseVersion(self.at.version, self.at.position, self.at.schema, self.at.memory)
            self.catalog.bases.note(self.record.source, self.record.local, base)
            if self.state() is TableState.PENDING:
                self.catalog.set_table(self.record.source, self.record.upstream, TableState.LIVE)

    def _memory(self, found: State) -> str | None:
        """Return what its last commit says that one has to know to go on: noted here, as Delta forgets old commits."""
        if not self.captured.remembers():
            return None
        noted = self.catalog.bases.newest(self.record.source, self.record.local, found.position)
        known = noted is not None and noted.position == found.position and noted.version == found.version
        return noted.memory if noted is not None and known else self.base.memory(found.position)

    def stands(self, at: State, durable: Lsn) -> State:
        """Say where its base stands: further on, if the catalog knows that nothing has happened to it since."""
        noted = self.catalog.bases.newest(self.record.source, self.record.local, durable)
        return at if noted is None else at._replace(position=Lsn(max(at.position, noted.position)))

    def revive(self) -> None:
        """Note that an error of this table is mended."""
        if not self.gone:
            self.catalog.set_table(self.record.source, self.record.upstream, TableState.LIVE)

    def trouble(self, error: PenstockError) -> None:
        """Note an error that may pass: it stays what it is."""
        if not self.gone:
            self._troubled = True
            self.catalog.note_trouble(self.record.source, self.record.upstream, error.message, error.hint)

    def works(self) -> None:
        """Note that no such error is left."""
        self.tries.worked()
        if self._troubled and not self.gone:
            self.catalog.note_trouble(self.record.source, self.record.upstream)
            self._troubled = False

    def fail(self, error: PenstockError) -> None:
        """Note a definite error of this table."""
        if self.gone:
            return
        self.catalog.set_table(
            self.record.source, self.record.upstream, TableState.FAILED, error=error.message, hint=error.hint
        )
