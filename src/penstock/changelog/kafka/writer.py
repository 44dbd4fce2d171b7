"""The single writer of a log in Kafka: each call adds its records to the index exactly once.

::

    step ─▶ commit ─▶ seen in the index ─▶ done
              │ error
              ▼
    a successor in the index? ─▶ DefiniteError: another writer has taken over
    fenced without one?       ─▶ TransientError: the broker aborted the transaction (a pause beyond its timeout)
    else: new session (commits or aborts the pending transaction) ─▶ read the index to its end
              └─ the step's serial number is there ─▶ done; else ─▶ the same step again

The outcome of an unacknowledged commit is therefore never guessed. A writer whose step failed permanently rejects all
further steps, because the state that its caller assumes may be wrong.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from penstock.changelog.as_of import microseconds
from penstock.changelog.chunk_codec import StoredChunk, checksum
from penstock.changelog.interface import (
    ChangeLogWriter,
    Chunk,
    Commit,
    Discarded,
    Frontiers,
    Prepared,
    StagedCommit,
    is_change,
)
from penstock.changelog.kafka.clients import DEFINITE, LogLocation, cause_of, is_fenced, translated_error
from penstock.changelog.kafka.commit_times import peak_at
from penstock.changelog.kafka.index_tail import IndexTail
from penstock.changelog.kafka.records import (
    DataExpiredError,
    Defined,
    IndexedChunk,
    Opened,
    Payloads,
    Published,
    Record,
    Settled,
    Staged,
    StagedPart,
    TableFailure,
    data_lost,
    messages,
    to_text,
)
from penstock.changelog.kafka.session import Session, Written
from penstock.changelog.kafka.topics import TopicTruncator, message_limit, next_valid
from penstock.errors import DefiniteError, PenstockError, TableError, TransientError
from penstock.model import TableSchema
from penstock.positions import Lsn

__all__ = ["KafkaLogWriter", "Steps"]

_CLOCKS = 1000
"""The number of publications without a transaction that may accumulate up to `valid` before they are truncated."""


class KafkaLogWriter(ChangeLogWriter):
    """The writer of the log at `location`; it fences earlier writers."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._tail = IndexTail(location)
        self._payloads = Payloads(location)
        self._truncator = TopicTruncator(location)
        try:
            self._steps = Steps(location, self._tail, message_limit(location))
        except BaseException:
            self._tail.close()
            raise

    def define(self, schema: TableSchema, since: Lsn | None = None, generation: int = 0) -> int:
        """Return the version of this schema; add it if it differs from the table's latest version."""
        self._steps.check()
        index = self._tail.index
        known = index.table(schema.table)
        is_restart = generation > (known.generation if known else 0)
        is_same = known is not None and known.schemas[-1] == schema
        version = (len(known.schemas) if known else 0) + (not is_same)
        if is_restart or not is_same:
            start = index.durable if is_restart else since
            number = known.number if known else index.next_number()
            fields = (
                number,
                version,
                to_text(schema.to_bytes()),
                start,
                generation,
                index.durable if is_restart else 0,
            )
            self._steps.execute((), lambda serial, _: Defined(serial, *fields))
        return version

    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction in progress."""
        if not chunks:
            return
        packed = [StoredChunk.pack(chunk) for chunk in chunks]
        live = [_subtransactions(chunk) for chunk in chunks]

        def record(serial: int, written: list[Written]) -> Staged:
            described = self._described(chunks, packed, written)
            return Staged(serial, xid, tuple(map(StagedPart, described, live)))

        self._steps.execute(packed, record)

    def settle(self, xid: int, outcome: Prepared | Discarded) -> None:
        """Record that a staged transaction was prepared or rolled back."""
        prepared = isinstance(outcome, Prepared)
        aborted = tuple(sorted(outcome.aborted)) if isinstance(outcome, Prepared) else ()
        self._steps.execute((), lambda serial, _: Settled(serial, xid, prepared, aborted))

    def publish(
        self,
        chunks: Sequence[Chunk],
        durable: Lsn,
        *,
        committed_at: int | None = None,
        staged: Mapping[int, StagedCommit] | None = None,
        errors: Sequence[TableError] = (),
        passed: int | None = None,
        last: Commit | None = None,
    ) -> None:
        """Make everything up to `durable` visible in one Kafka transaction."""
        self._check_forward(durable)
        commits = staged or {}
        times = [committed_at, passed, *(commit.committed_at for commit in commits.values()), *map(_newest, chunks)]
        peak = max(self._tail.index.peak, *(at for at in times if at is not None), 0)
        packed = [StoredChunk.pack(chunk) for chunk in chunks]
        failed = tuple(TableFailure.of(error) for error in errors)

        def record(serial: int, written: list[Written]) -> Published:
            ended = (
                part for xid, commit in commits.items() for part in self._tail.index.staging.committed(xid, commit)
            )
            described = (*ended, *self._described(chunks, packed, written))
            now = time.time_ns() // 1000
            last_commit = None if last is None else (int(last.lsn), last.xid, last.committed_at)
            return Published(serial, durable, committed_at, now, peak, described, tuple(commits), failed, last_commit)

        self._steps.execute(packed, record)

    def retain(self, since: datetime) -> Frontiers:
        """Record the new start of history, then truncate the topics."""
        self._steps.check()
        index = self._tail.refresh(strict=True)
        covered, now = self._tail.next, time.time_ns() // 1000
        try:
            valid = next_valid(index, self._payloads, microseconds(since), now)
            valid_at = peak_at(index, self._payloads, valid)
        except DataExpiredError:
            raise data_lost(self._location, "a publication that is still retained") from None
        if valid > index.valid or index.publications.upto(valid) > _CLOCKS:
            self._steps.execute((), lambda serial, _: self._tail.index.state(serial, valid, valid_at, covered, now))
        self._truncator.truncate(*self._tail.index.first_needed_offsets())
        return self.frontiers()

    def frontiers(self) -> Frontiers:
        """Return the frontiers of the log."""
        return self._tail.index.frontiers()

    def close(self) -> None:
        """Close all clients."""
        self._steps.close()
        self._payloads.close()
        self._tail.close()

    def _check_forward(self, durable: Lsn) -> None:
        if durable < self._tail.index.durable:
            message = f"the durable frontier of the change log cannot move back to {durable}"
            raise DefiniteError(message, "This is a defect in Penstock: please report it. Nothing was written.")

    def _described(
        self, chunks: Sequence[Chunk], packed: Sequence[StoredChunk], written: Sequence[Written]
    ) -> Iterator[IndexedChunk]:
        for chunk, stored, (offset, parts) in zip(chunks, packed, written, strict=True):
            known = self._tail.index.table(chunk.table)
            if known is None:
                message = f"a chunk of {chunk.table} was written to the change log before its schema was defined"
                raise DefiniteError(message, "This is a defect in Penstock: please report it. Nothing was written.")
            lsns = chunk.transactions.column(0)
            yield IndexedChunk(
                *(known.number, chunk.version, lsns[0].as_py(), lsns[-1].as_py(), chunk.images.num_rows),
                *(memoryview(stored.images).nbytes, chunk.kinds << 1 | chunk.unchanged),
                *(checksum(stored.transactions, stored.images), offset, parts),
                memoryview(stored.transactions).nbytes,
                changes=chunk.changes,
            )


def _subtransactions(chunk: Chunk) -> tuple[tuple[int, int, int, int], ...]:
    """Return the subtransactions of a staged chunk: row among its transactions, xid, numbers of images and changes."""
    numbers, count = chunk.images.column(0).to_numpy(), chunk.transactions.num_rows
    images = np.bincount(numbers, minlength=count).tolist()
    changes = np.bincount(numbers[is_change(chunk.images.column("_image").to_numpy())], minlength=count).tolist()
    return tuple(zip(range(count), chunk.transactions.column(1).to_pylist(), images, changes, strict=True))


def _newest(chunk: Chunk) -> int | None:
    at: int | None = pc.max(chunk.transactions.column(2).cast(pa.int64())).as_py()
    return at


_LIMIT = 90.0
"""How long a step is retried, in seconds."""
_INIT_SECONDS = 20.0
_CLOSED = "the writer of the change log was closed"
_INTERRUPTED = "a step of the writer of the change log was interrupted"
_REOPEN = "Open the log again: this ends the pending transaction."
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)

_Build = Callable[[int, list[Written]], Record]


class Steps:
    """Executes the steps of a writer, from its first session until a step fails permanently or the writer is closed."""

    def __init__(self, location: LogLocation, tail: IndexTail, limit: int) -> None:
        self._location = location
        self._tail = tail
        self._limit = limit
        self._owners: tuple[str, ...] = ()
        """The names that the index may have as its writer; any other name is a successor."""
        self._failure: PenstockError | None = None
        self._session = self._new_session(time.monotonic() + _LIMIT)
        self._open()

    def execute(self, payloads: Sequence[StoredChunk], build: _Build) -> None:
        """Execute a step: `build` returns its record, given its serial number and the locations of the payloads."""
        self.check()
        try:
            self._execute(payloads, build)
        except BaseException as error:
            self._failure = error if isinstance(error, PenstockError) else TransientError(_INTERRUPTED, _REOPEN)
            self._session.abandon()
            raise

    def check(self) -> None:
        """Raise the error of an earlier step, after which no further step is possible."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop being the writer."""
        if self._failure is None:
            self._session.abandon()
        self._failure = TransientError(_CLOSED, _REOPEN)

    def _open(self) -> None:
        """Record this process as the writer; from then on, another name in the index is a successor."""
        owner = uuid.uuid4().hex
        self._owners = (self._tail.refresh().owner, owner)
        self.execute((), lambda serial, _: Opened(serial, owner))
        self._owners = (owner,)
        self._check_owner()

    def _execute(self, payloads: Sequence[StoredChunk], build: _Build) -> None:
        deadline = time.monotonic() + _LIMIT
        before = self._tail.index.serial or 0
        while (self._tail.index.serial or 0) <= before:
            try:
                self._session.commit(payloads, lambda at: self._messages(build(before + 1, at)), deadline)
                self._tail.until(before + 1, deadline)
            except KafkaException as error:
                self._recover(cause_of(error), deadline)

    def _messages(self, record: Record) -> list[bytes]:
        return messages(record, self._session.max_part_bytes)

    def _recover(self, cause: KafkaError, deadline: float) -> None:
        """Open a new session and find out whether the step was committed; or raise."""
        self._session.abandon()
        if cause.code() in DEFINITE:
            raise translated_error(self._location, "written", cause)
        self._tail.refresh(timeout=deadline - time.monotonic())
        self._check_owner()
        if is_fenced(cause):
            message = f"the brokers aborted the transaction of this writer of the change log {self._location.name}"
            raise TransientError(message, _REOPEN)
        self._session = self._new_session(deadline)
        self._tail.refresh(timeout=deadline - time.monotonic())
        self._check_owner()

    def _check_owner(self) -> None:
        if self._tail.index.owner not in self._owners:
            message = f"another writer has taken over the change log {self._location.name}"
            raise DefiniteError(message, "Run one capture per source: stop this process or the other one.")

    def _new_session(self, deadline: float) -> Session:
        """Open a session, with retries: a broker that starts up reports for a while that it is not ready."""
        for attempt in range(1000):
            try:
                session = Session(self._location, self._limit)
                session.begin(_INIT_SECONDS)
                return session
            except KafkaException as error:
                cause = cause_of(error)
                if cause.code() in DEFINITE or time.monotonic() > deadline:
                    raise translated_error(self._location, "written", cause) from error
                time.sleep(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
        raise AssertionError
