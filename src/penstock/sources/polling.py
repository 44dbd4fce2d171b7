"""Instances of polling sources, which produce rows step by step. A kind only implements where the rows come from.

::

    next_step() ─▶ Step ─▶ note (see `polling_steps`) ─▶ changes as chunks ─▶ log: publish; `durable` advances by
       ▲           None ─▶ publish the time of the poll ─▶ pause               the step's number of transactions
       └────────────────────────────────────────────┘

* **Positions** are integers from 1, one per transaction.
* **Time.** If a poll at time C returns None, everything that happened upstream before C is in the log. The log may
  therefore report that C, less a margin for clock skew, has passed. Later changes get later times.
* **Errors.** A `DefiniteError` in a step is an error of all tables of the instance, at the next position: data before
  it stays readable, and the instance polls no more until the table is captured again. A `TransientError` ends `run`,
  and the next run resumes at the log's position.
* **Resnapshot.** A table whose generation is higher than in the log starts over, without notes, after `durable`.
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
from penstock.sources.interface import Instance, InstanceConfig, InstanceFactory
from penstock.sources.polling_steps import Changes, Notes, Numbering, Step
from penstock.sources.produced_table import ProducedTable
from penstock.sources.row_tables import RowTable

__all__ = ["PollingConfig", "PollingFactory", "PollingInstance"]

_STAGE_BYTES = 16 << 20
_CLOCK_SECONDS, _RETAIN_SECONDS = 1.0, 1.0
_MARGIN = 1_000_000
"""In microseconds: a change may have a timestamp slightly earlier than the time at which it becomes visible."""


class PollingConfig(InstanceConfig):
    """The config of a polling instance, which has no external objects; kinds add their own fields."""

    tables: tuple[RowTable, ...]

    def prepare(self) -> Self:
        """Create nothing."""
        return self

    def cleanup(self) -> list[str]:
        """Remove nothing."""
        return []

    def cleanup_statements(self) -> list[str]:
        """Return no statements: there are no external objects."""
        return []

    def start(self) -> Lsn:
        """Return zero: the first transaction has position 1."""
        return Lsn.ZERO

    def produced(self) -> Sequence[RowTable]:
        """Return its tables."""
        return self.tables

    def restarted(self, tables: Sequence[ProducedTable]) -> Self:
        """Restart the only table; several tables share their steps and cannot be restarted individually."""
        if len(self.tables) > 1:
            message = f'tables of source "{self.source}" cannot be captured again individually'
            raise UsageError(message, f"Drop the source and create it again: penstock drop {self.source}")
        return with_fields(self, tables=tuple(tables))


_Config = TypeVar("_Config", bound=PollingConfig)


class PollingInstance(Instance, ABC, Generic[_Config]):
    """Polls for steps and writes them to the log."""

    def __init__(self, config: _Config, log: ChangeLog, state: Path) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._durable = Lsn.ZERO
        self._valid = Lsn.ZERO
        self._newest = 0
        self._clock_next = self._retain_next = 0.0

    # -- implemented by a kind --------------------------------------------------------------------------------------

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Prepare to resume after a position; called at the beginning of each run."""

    @abstractmethod
    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Return the step after a position, given the notes up to it; None if there is nothing new."""

    def pause(self) -> float:
        """Return the number of seconds to wait after an empty poll."""
        return 1.0

    # -- the methods of `Instance` ----------------------------------------------------------------------------------

    def config(self) -> _Config:
        """Return the config, which never changes."""
        return self._config

    def valid_frontier(self) -> Lsn:
        """Return the start of the log's history."""
        return self._valid

    def durable_frontier(self) -> Lsn:
        """Return the position up to which the log is on disk."""
        return self._durable

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Write steps to the log until `stop` is set."""
        with closing(self._log.writer()) as writer, closing(Notes(self._state)) as notes:
            frontiers = writer.frontiers()
            self._valid, self._durable = frontiers.valid, frontiers.durable
            steps = self._begin(writer, notes)
            self.resume(self._durable, steps.noted)
            connected()
            while not stop.is_set():
                polled_at = _now()
                if not self._write_next(steps):
                    self._publish_time(writer, polled_at)
                    stop.wait(self.pause())
                if time.monotonic() >= self._retain_next:
                    self._valid = writer.retain(datetime.now(UTC) - self._config.retained()).valid
                    self._retain_next = time.monotonic() + _RETAIN_SECONDS

    def _begin(self, writer: ChangeLogWriter, notes: Notes) -> _StepWriter:
        """Define the tables in the log, and load the notes for its position."""
        with closing(self._log.reader()) as reader:
            logged = reader.tables()
        generations = [table.generation for table in self._config.tables]
        generation = max(generations + [table.generation for table in logged.values()])
        if any(_is_new(table, logged.get(table.name)) for table in self._config.tables):
            notes.begin(generation, self._durable)
        known: dict[TableName, tuple[TableSchema, int]] = {}
        for table in self._config.tables:
            earlier = logged.get(table.name)
            since = None if _is_new(table, earlier) and table.generation else self._durable
            if earlier is not None and not _is_new(table, earlier):
                table = table.with_logged_columns(earlier.schema)
            schema = table.table_schema()
            known[table.name] = (schema, writer.define(schema, since, table.generation))
        noted = notes.recall(generation, self._durable)
        with closing(self._log.reader()) as reader:
            failed = any(table.error for name, table in reader.tables().items() if name in known)
        return _StepWriter(writer, notes, generation, known, noted, failed)

    def _write_next(self, steps: _StepWriter) -> bool:
        """Write the next step to the log; return whether there was one."""
        if steps.failed:
            return False
        try:
            step = self.next_step(self._durable, steps.noted)
            if step is None:
                return False
            at = min(step.committed_at or _now(), _now())
            self._durable = steps.write(self._durable, step, at)
        except DefiniteError as error:
            at = _now()
            self._durable = steps.fail(self._durable, error, at)
        self._newest = max(self._newest, at)
        return True

    def _publish_time(self, writer: ChangeLogWriter, polled_at: int) -> None:
        """Publish the time that has passed while there are no transactions."""
        passed = polled_at - _MARGIN
        if passed > self._newest and time.monotonic() >= self._clock_next:
            writer.publish([], self._durable, passed=passed)
            self._clock_next = time.monotonic() + _CLOCK_SECONDS


class PollingFactory(InstanceFactory):
    """Creates instances of one class; has no state."""

    def __init__(self, create: Callable[[Any, ChangeLog, Path], Instance]) -> None:
        self._create = create

    def instantiate(self, config: InstanceConfig, log: ChangeLog, state: Path) -> Instance:
        """Create an instance."""
        return self._create(config, log, state)


class _StepWriter:
    """Writes steps to the log and the notes, during one run."""

    def __init__(
        self,
        writer: ChangeLogWriter,
        notes: Notes,
        generation: int,
        tables: Mapping[TableName, tuple[TableSchema, int]],
        noted: dict[str, Any],
        failed: bool,
    ) -> None:
        self._writer, self._notes, self._generation, self._tables = writer, notes, generation, dict(tables)
        self.noted = noted
        self.failed = failed
        """Whether the tables have an error: then no more steps are written."""

    def write(self, after: Lsn, step: Step, committed_at: int) -> Lsn:
        """Store the notes of a step and publish it; return its last position."""
        upto = Lsn(after + step.transactions)
        self._notes.note(self._generation, upto, step.notes)
        for schema in step.schemas:
            # If this process dies before the step is published, the next step at this position has the columns, too.
            self._tables[schema.table] = (schema, self._writer.define(schema, Lsn(after + 1)))
        chunks, staged = self._collect(after, step, committed_at)
        commits = {int(upto): StagedCommit(upto, committed_at)} if staged else {}
        self._writer.publish(chunks, upto, committed_at=committed_at, staged=commits)
        self.noted.update(step.notes)
        return upto

    def fail(self, after: Lsn, error: DefiniteError, at: int) -> Lsn:
        """Record an error of all tables at the next position."""
        upto = Lsn(after + 1)
        self._notes.note(self._generation, upto, {})
        errors = [TableError(str(table), upto, error.message, error.hint) for table in self._tables]
        self._writer.publish([], upto, committed_at=at, errors=errors)
        self.failed = True
        return upto

    def _collect(self, after: Lsn, step: Step, committed_at: int) -> tuple[list[Chunk], bool]:
        """Return the chunks of a step, and whether they were too large to hold in memory and were staged instead."""
        numbering = Numbering(after, step.transactions, committed_at)
        held: list[Changes] = []
        staged = False
        try:
            for changes in _non_empty(step.changes):
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


def _non_empty(changes: Iterable[Changes]) -> Iterator[Changes]:
    return (each for each in changes if len(each.rows))


def _is_new(table: RowTable, logged: LoggedTable | None) -> bool:
    return logged is None or table.generation > logged.generation


def _now() -> int:
    return time.time_ns() // 1000
