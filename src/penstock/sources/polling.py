"""Instances of kinds that make rows themselves, step by step: all but where the rows come from.

::

    next_step() ─▶ Step ─▶ noted (see `notes`) ─▶ its changes as chunks ─▶ log: published, `durable` moves by its
       ▲           None ─▶ the clock from before the question is told ─▶ pause       number of transactions
       └────────────────────────────────────────────┘

* **Positions** are numbers from 1, one for each transaction.
* **Moments.** The answer None to a question that was asked at C says that all that had happened outside before C is in
  the log; so C, less a margin for clocks that are not quite alike, has passed. What comes later counts as later.
* **Errors.** A `DefiniteError` of a step is an error of all tables of the instance, and has the next position: what
  lies before it stays readable, and nothing more is asked for until the table is captured anew. A `TransientError`
  ends `run`, and the next one goes on where the log is.
* **Anew.** A table of a higher generation than the log has begins again, with no notes: after `durable`, in the log.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from penstock.changelog.interface import ChangeLog, ChangeLogWriter, Chunk, Discarded, LoggedTable, StagedCommit
from penstock.errors import DefiniteError, TableError, UsageError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.interface import Instance, InstanceConfig, InstanceFactory, ProducedTable
from penstock.sources.polling_steps import Changes, Notes, Numbering, Step
from penstock.sources.row_tables import RowTable

__all__ = ["SteppingConfig", "SteppingFactory", "SteppingInstance"]

_STAGE_BYTES = 16 << 20
_CLOCK_SECONDS, _RETAIN_SECONDS = 1.0, 1.0
_MARGIN = 1_000_000
"""In microseconds: something may be dated a little before it can be seen."""


class SteppingConfig(InstanceConfig):
    """A config of such an instance, which makes nothing outside; kinds add what they need to know."""

    tables: tuple[RowTable, ...]

    def prepare(self) -> Self:
        """Make nothing."""
        return self

    def cleanup(self) -> list[str]:
        """Remove nothing."""
        return []

    def by_hand(self) -> list[str]:
        """Nothing is left."""
        return []

    def start(self) -> Lsn:
        """Begin with nothing: the first transaction is 1."""
        return Lsn.ZERO

    def produced(self) -> Sequence[RowTable]:
        """Return its tables."""
        return self.tables

    def anew(self, tables: Sequence[ProducedTable]) -> Self:
        """Let its one table begin again; several come from the same steps, and cannot begin one by one."""
        if len(self.tables) > 1:
            message = f"the tables of source {self.source} are made together: one alone cannot be captured anew"
            raise UsageError(message, f"Drop the source and create it again: penstock drop {self.source}")
        return with_fields(self, tables=tuple(tables))


_Config = TypeVar("_Config", bound=SteppingConfig)


class SteppingInstance(Instance, ABC, Generic[_Config]):
    """Takes steps into the log, for as long as there are any."""

    def __init__(self, config: _Config, log: ChangeLog, state: Path) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._durable = Lsn.ZERO
        self._valid = Lsn.ZERO
        self._newest = 0
        self._clock_next = self._retain_next = 0.0

    # -- what a kind says -------------------------------------------------------------------------------------------

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Get ready to go on behind a position: called at the beginning of each run."""

    @abstractmethod
    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Look outside for what comes behind a position, of which so much was noted; None where there is nothing."""

    def pause(self) -> float:
        """Return how many seconds to wait when there was nothing."""
        return 1.0

    # -- the family -------------------------------------------------------------------------------------------------

    def config(self) -> _Config:
        """Return the config, which never changes."""
        return self._config

    def valid_frontier(self) -> Lsn:
        """Return where the log's history begins."""
        return self._valid

    def durable_frontier(self) -> Lsn:
        """Return what the log has on disk."""
        return self._durable

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Take steps until told to stop."""
        with closing(self._log.writer()) as writer, closing(Notes(self._state)) as notes:
            frontiers = writer.frontiers()
            self._valid, self._durable = frontiers.valid, frontiers.durable
            taking = self._begin(writer, notes)
            self.resume(self._durable, taking.noted)
            connected()
            while not stop.is_set():
                asked = _now()
                if not self._take_next(taking):
                    self._tell_clock(writer, asked)
                    stop.wait(self.pause())
                if time.monotonic() >= self._retain_next:
                    self._valid = writer.retain(datetime.now(UTC) - self._config.retained()).valid
                    self._retain_next = time.monotonic() + _RETAIN_SECONDS

    def _begin(self, writer: ChangeLogWriter, notes: Notes) -> _Taking:
        """Define the tables in the log, and recall what was noted with what it holds."""
        with closing(self._log.reader()) as reader:
            logged = reader.tables()
        generation = max(table.generation for table in self._config.tables)
        if any(_is_new(table, logged.get(table.name)) for table in self._config.tables):
            notes.begin(generation, self._durable)
        known: dict[TableName, tuple[TableSchema, int]] = {}
        for table in self._config.tables:
            since = None if _is_new(table, logged.get(table.name)) and table.generation else self._durable
            schema = table.table_schema()
            known[table.name] = (schema, writer.define(schema, since, table.generation))
        noted = notes.recall(generation, self._durable)
        with closing(self._log.reader()) as reader:
            ended = any(table.error for name, table in reader.tables().items() if name in known)
        return _Taking(writer, notes, generation, known, noted, ended)

    def _take_next(self, taking: _Taking) -> bool:
        """Take a step; say whether there was one."""
        if taking.ended:
            return False
        try:
            step = self.next_step(self._durable, taking.noted)
            if step is None:
                return False
            at = min(step.committed_at or _now(), _now())
            self._durable = taking.take(self._durable, step, at)
        except DefiniteError as error:
            at = _now()
            self._durable = taking.end(self._durable, error, at)
        self._newest = max(self._newest, at)
        return True

    def _tell_clock(self, writer: ChangeLogWriter, asked: int) -> None:
        """Let the log know which moments have passed, while no transaction says so."""
        passed = asked - _MARGIN
        if passed > self._newest and time.monotonic() >= self._clock_next:
            writer.publish([], self._durable, passed=passed)
            self._clock_next = time.monotonic() + _CLOCK_SECONDS


class SteppingFactory(InstanceFactory):
    """Makes instances of one class; holds nothing."""

    def __init__(self, make: Callable[[Any, ChangeLog, Path], Instance]) -> None:
        self._make = make

    def instantiate(self, config: InstanceConfig, log: ChangeLog, state: Path) -> Instance:
        """Make an instance."""
        return self._make(config, log, state)


class _Taking:
    """One run's hold on the log and the notes."""

    def __init__(
        self,
        writer: ChangeLogWriter,
        notes: Notes,
        generation: int,
        tables: Mapping[TableName, tuple[TableSchema, int]],
        noted: dict[str, Any],
        ended: bool,
    ) -> None:
        self._writer, self._notes, self._generation, self._tables = writer, notes, generation, tables
        self.noted = noted
        self.ended = ended
        """Whether the tables have an error: then nothing more is taken."""

    def take(self, after: Lsn, step: Step, committed_at: int) -> Lsn:
        """Note a step and publish it; return the position to which it leads."""
        upto = Lsn(after + step.transactions)
        self._notes.note(self._generation, upto, step.notes)
        chunks, staged = self._collected(after, step, committed_at)
        commits = {int(upto): StagedCommit(upto, committed_at)} if staged else {}
        self._writer.publish(chunks, upto, committed_at=committed_at, staged=commits)
        self.noted.update(step.notes)
        return upto

    def end(self, after: Lsn, error: DefiniteError, at: int) -> Lsn:
        """Record an error of all tables, at the next position."""
        upto = Lsn(after + 1)
        self._notes.note(self._generation, upto, {})
        errors = [TableError(str(table), upto, error.message, error.hint) for table in self._tables]
        self._writer.publish([], upto, committed_at=at, errors=errors)
        self.ended = True
        return upto

    def _collected(self, after: Lsn, step: Step, committed_at: int) -> tuple[list[Chunk], bool]:
        """Make the chunks of a step; say whether they became too large together, and were written ahead."""
        numbering = Numbering(after, step.transactions, committed_at)
        held: list[Changes] = []
        staged = False
        try:
            for changes in _sized(step.changes):
                held.append(changes)
                if step.transactions == 1 and sum(each.rows.nbytes for each in held) > _STAGE_BYTES:
                    self._stage(after, numbering, held)
                    held, staged = [], True
            if staged and held:
                self._stage(after, numbering, held)
                held = []
        except BaseException:
            if staged:
                self._writer.settle(after + 1, Discarded())
            raise
        return [numbering.chunk(each, *self._tables[each.table]) for each in held], staged

    def _stage(self, after: Lsn, numbering: Numbering, held: Sequence[Changes]) -> None:
        chunks = [numbering.chunk(each, *self._tables[each.table], staged=True) for each in held]
        self._writer.stage(after + 1, chunks)


def _sized(changes: Iterable[Changes]) -> Iterator[Changes]:
    return (each for each in changes if len(each.rows))


def _is_new(table: RowTable, logged: LoggedTable | None) -> bool:
    return logged is None or table.generation > logged.generation


def _now() -> int:
    return time.time_ns() // 1000
