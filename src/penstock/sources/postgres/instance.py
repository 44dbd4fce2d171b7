"""Capture: stream all tables through one slot and one connection into the change log.

::

    ReplicationStream ─pages─▶ Decoder ─chunks─▶ ChangeLogWriter.publish ─▶ durable ─▶ feedback to the slot

Whole transactions are published in one step, and the slot is confirmed only up to what is durable then. A transaction
that outgrows the buffer is staged in parts. While nothing is in flight, the server's keepalives advance the frontier,
so that an idle table on a busy server retains no WAL; and the server's clock determines which moments have passed.

If another session interferes with watermarks or heartbeats, capture publishes all transactions that committed before
that, and stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from penstock.changelog.interface import ChangeLog, ChangeLogWriter, Commit, Discarded, Prepared
from penstock.errors import DefiniteError, PenstockError, TableError, TransientError
from penstock.fields import with_fields
from penstock.model import Image, TableName
from penstock.positions import Lsn
from penstock.sources.interface import Instance, InstanceConfig, InstanceFactory
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import ANSWER_SECONDS, connect, connect_replication, connection_error
from penstock.sources.postgres.options import Heartbeat, Rules, Watermarks
from penstock.sources.postgres.pgoutput.added_columns import current_filenodes, describe_added_columns
from penstock.sources.postgres.pgoutput.decode_result import DecodeResult
from penstock.sources.postgres.pgoutput.decoder import Decoder
from penstock.sources.postgres.pgoutput.overlap import Overlap
from penstock.sources.postgres.pgoutput.relations import (
    RejectedShape,
    Shape,
    UnknownColumnsError,
    altered_shape,
    column_changes,
    is_altered,
)
from penstock.sources.postgres.replication.catalog_facts import Facts
from penstock.sources.postgres.replication.continuity import require_same_server, verify_continuity
from penstock.sources.postgres.replication.heartbeat import HeartbeatWriter, LastContact, ServerClock
from penstock.sources.postgres.replication.interference import InterferenceGuard
from penstock.sources.postgres.replication.old_transactions import wait_until_visible
from penstock.sources.postgres.replication.publication_watch import PublicationWatch
from penstock.sources.postgres.replication.stream import Page, ReplicationStream, StreamEndedError, StreamOptions

__all__ = ["PostgresInstance", "PostgresInstanceFactory"]

_STAGE_BYTES = 16 << 20
_IDLE_SECONDS = 0.2
_RETAIN_SECONDS = 1.0


class PostgresInstanceFactory(InstanceFactory):
    """Creates captures; has no state."""

    def instantiate(self, config: InstanceConfig, log: ChangeLog, state: Path) -> PostgresInstance:
        """Create a capture that writes to this log; the config has everything else."""
        if not isinstance(config, PostgresInstanceConfig):
            raise TypeError(config)
        return PostgresInstance(config, log, state)


class PostgresInstance(Instance):
    """The capture of one Postgres database."""

    def __init__(self, config: PostgresInstanceConfig, log: ChangeLog, state: Path | None = None) -> None:
        self._config = config
        self._log = log
        self._activity = LastContact(state)
        self._durable = Lsn.ZERO
        self._last: Commit | None = None
        """The last transaction in the log that changed a captured table, as of the start of this run."""
        self._overlap = Overlap(config.source, Lsn.ZERO, Lsn.ZERO, None)
        self._valid = Lsn.ZERO
        self._in_progress = True
        """Whether to request transactions while they run. Disabled if one alters columns (`_describe_columns`), and
        after Postgres failed at it ("could not map filenumber", for a table whose DDL was partly rolled back).
        """
        self._binary = True
        """Whether to request values in binary form: not if only Postgres can print some column."""
        self._heartbeat = HeartbeatWriter(config.heartbeat, config.heartbeat_interval, config.identity)
        self._watch = PublicationWatch(config, Lsn.ZERO)
        self._facts_changed = False
        """Whether the config has facts that are not stored yet."""
        self._retain_next = 0.0
        self._newest_commit = 0
        """The newest commit time of this run: an earlier clock adds nothing."""
        self._side: psycopg.Connection[Any] | None = None

    def config(self) -> PostgresInstanceConfig:
        """Return the config, with the timeline that capture follows."""
        return self._config

    def valid_frontier(self) -> Lsn:
        """Return the position at which the log's history begins."""
        return self._valid

    def durable_frontier(self) -> Lsn:
        """Return the position up to which the log is on disk."""
        return self._durable

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Stream into the log until `stop` is set."""
        with closing(self._log.writer()) as writer:
            frontiers = writer.frontiers()
            self._valid, self._durable, self._last = frontiers.valid, frontiers.durable, frontiers.last
            with self._connection_errors():
                stream, decoder = self._open(writer)
            connected()
            try:
                with self._connection_errors():
                    self._capture(stream, decoder, writer, stop, connected)
            except StreamEndedError:
                self._in_progress = False  # Postgres fails to stream some transactions with DDL
                raise
            finally:
                stream.stop()
                if self._side is not None:
                    self._side.close()

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise connection_error(error, self._config.connection) from error

    def _check_published(
        self, connection: psycopg.Connection[Any], writer: ChangeLogWriter, decoder: Decoder
    ) -> list[TableError]:
        """Fail the tables whose changes are no longer all published."""
        self._watch.update_columns(shape.table for shape in decoder.shapes.current.values())
        errors = self._watch.check(connection, self._durable)
        if errors:
            writer.publish([], self._durable, errors=errors)
        self._config = with_fields(self._config, facts=self._watch.facts)
        return errors

    def _truncated_since(self, facts: Facts | None) -> list[TableName]:
        """Return the tables that were truncated, according to the log, since the last check of the catalogs."""
        with closing(self._log.reader()) as reader:
            known, since = reader.tables(), Lsn(facts.at if facts else self._durable)
            extents = (
                reader.extent(name, max(since, table.valid), self._durable)
                for name, table in known.items()
                if max(since, table.valid) < self._durable
            )
            return [extent.table for extent in extents if extent.has(Image.TRUNCATE)]

    def _open(self, writer: ChangeLogWriter) -> tuple[ReplicationStream, Decoder]:
        """Connect, and resume only if that provably loses nothing.

        Queries use another connection than the stream: a session that has accessed a table caches its current
        columns, and would decode older changes with them.
        """
        with connect_replication(self._config.connection, answers_within=ANSWER_SECONDS) as asking:
            found = verify_continuity(asking, self._config, self._durable)
            self._config = found.config
            self._overlap = Overlap(self._config.source, found.confirmed, self._durable, self._last)
            truncated = self._truncated_since(self._config.facts)
            self._watch = PublicationWatch(self._config, self._durable, truncated)
            decoder = self._decoder(writer)
            decoder.end_tables(self._check_published(asking, writer, decoder))
            self._update_filenodes(asking, decoder)
        application = f"penstock {self._config.source}"
        replication = connect_replication(self._config.connection, application, answers_within=ANSWER_SECONDS)
        try:
            require_same_server(replication, self._config)
            options = self._options(decoder)
            return ReplicationStream(replication, options, self._confirmable), decoder
        except BaseException:
            replication.close()
            raise

    def _confirmable(self) -> Lsn:
        """Return up to where the slot may be confirmed: the durable position, once the overlap is verified."""
        return self._overlap.confirmable(self._durable)

    def _decoder(self, writer: ChangeLogWriter) -> Decoder:
        """Return a decoder that starts with the columns that each table has in the log."""
        with closing(self._log.reader()) as reader:
            logged = reader.tables()
        shapes = []
        for captured in self._config.tables:
            known = logged.get(captured.name)
            if captured.generation > (known.generation if known else 0):
                logged.pop(captured.name, None)
                shapes.append(Shape.of(captured, writer.define(captured.table_schema(), None, captured.generation)))
                continue
            table = captured if known is None else captured.with_logged_columns(known.schema)
            shapes.append(Shape.of(table, writer.define(table.table_schema(), self._durable)))
        table_starts = {
            table.name: logged[table.name].generation_start if table.name in logged else self._durable
            for table in self._config.tables
        }
        ended = [name for name, table in logged.items() if table.error is not None]
        strict = self._config.rules is Rules.STRICT
        return Decoder(
            *(shapes, self._durable, ended),
            truncate_ends=strict,
            guard=self._guard(),
            overlap=self._overlap,
            table_starts=table_starts,
        )

    def _guard(self) -> InterferenceGuard:
        config = self._config
        whole = self._durable == config.start()
        accepted = Lsn(config.accepted_interference)
        return InterferenceGuard(config.source, config.identity, config.meta_tables(), accepted=accepted, whole=whole)

    def _update_filenodes(self, connection: psycopg.Connection[Any], decoder: Decoder) -> None:
        """Record the file of each table: a rewrite before a column was added does not affect that column."""
        files = current_filenodes(connection, [shape.table for shape in decoder.shapes.current.values()])
        decoder.shapes.update_filenodes(files)
        tables = [with_fields(t, filenode=files.get(t.name, t.filenode)) for t in self._config.tables]
        self._config = with_fields(self._config, tables=tuple(tables))

    def _options(self, decoder: Decoder) -> StreamOptions:
        config = self._config
        columns = (column for shape in decoder.shapes.current.values() for column in shape.table.columns)
        return StreamOptions(
            config.slot,
            config.publication,
            binary=self._binary and not any(column.sent_as_text for column in columns),
            in_progress=self._in_progress,
            two_phase=config.flags.two_phase,
            messages=Watermarks.MESSAGE is config.watermarks or Heartbeat.MESSAGE is config.heartbeat,
        )

    def _describe_columns(self, decoder: Decoder, writer: ChangeLogWriter, unknown: UnknownColumnsError) -> None:
        """Look up the columns that were added to a table, or prove that columns were dropped or renamed.

        While the transaction that adds them is in progress, other sessions cannot see them. The stream is then reopened
        without such transactions: Postgres sends them at their commit, when the catalog has the columns.
        """
        if unknown.xid is not None:
            wait_until_visible(self._side_connection(), unknown.xid)
        if is_altered(unknown.shape, unknown.relation):
            self._alter(decoder, writer, unknown)
            return
        found = describe_added_columns(self._side_connection(), unknown.shape.table, unknown.relation)
        if isinstance(found, str):
            self._require_committed(unknown)
            decoder.shapes.learn(unknown.relation, RejectedShape(unknown.shape.name, found))
            return
        version = writer.define(found.table_schema())
        decoder.shapes.learn(unknown.relation, Shape.of(found, version))
        if self._binary and any(column.sent_as_text for column in found.columns):
            self._binary = False
            message = f"a column that only Postgres can print is added to {unknown.shape.name}"
            raise TransientError(message, "Capture reconnects and requests values as text.")

    def _require_committed(self, unknown: UnknownColumnsError) -> None:
        """Reopen the stream if the transaction has not committed: the catalog does not show yet what it changed."""
        if unknown.xid is None and self._in_progress:
            self._in_progress = False
            message = f"columns of {unknown.shape.name} are altered in a transaction that has not committed"
            raise TransientError(message, "Capture reconnects and receives that transaction at its commit.")

    def _alter(self, decoder: Decoder, writer: ChangeLogWriter, unknown: UnknownColumnsError) -> None:
        """Continue without dropped columns, with other names and wider types, if the catalogs prove these changes."""
        self._require_committed(unknown)
        decoder.end_tables(self._check_published(self._side_connection(), writer, decoder))
        self._facts_changed = True
        existing = self._watch.existing_columns(unknown.shape.table)
        altered = None if existing is None else altered_shape(unknown.shape, unknown.relation, existing)
        if altered is None:
            why = f"{column_changes(unknown.shape, unknown.relation)}, or the table was rewritten"
            decoder.shapes.learn(unknown.relation, RejectedShape(unknown.shape.name, why))
        else:
            decoder.shapes.learn(unknown.relation, altered)

    def _side_connection(self) -> psycopg.Connection[Any]:
        """Return a connection for queries beside the stream, to the same server."""
        if self._side is None or self._side.closed:
            application = f"penstock {self._config.source} aside"
            self._side = connect(self._config.connection, application, answers_within=ANSWER_SECONDS)
        return self._side

    def _capture(
        self,
        stream: ReplicationStream,
        decoder: Decoder,
        writer: ChangeLogWriter,
        stop: threading.Event,
        store: Callable[[], None],
    ) -> None:
        remainder, idle, clock = _Remainder(), _IdleFrontier(), ServerClock()
        while not stop.is_set():
            page = stream.next_page(_IDLE_SECONDS)
            self._activity.record(stream.last_received)
            if page is not None:
                buffer, fill = remainder.joined(page)
                consumed = self._decode(decoder, writer, idle, buffer, fill)
                remainder.keep(buffer, consumed, fill)
                stream.release(page)
            if idle.is_due():
                self._publish(writer, DecodeResult(durable=idle.take()))
            self._publish_clock(writer, clock)
            if decoder.take_redescribed():
                self._watch.check_soon()
            if self._watch.is_due():
                known = self._config.facts
                decoder.end_tables(self._check_published(self._side_connection(), writer, decoder))
                self._update_filenodes(self._side_connection(), decoder)
                if known is None or self._config.facts is None or not self._config.facts.same(known):
                    self._facts_changed = True
            if self._facts_changed:
                self._facts_changed = False
                store()
            if self._heartbeat.is_due():
                self._heartbeat.write(self._side_connection(), self._durable)
            if time.monotonic() >= self._retain_next:
                self._retain(writer)
        store()

    def _publish_clock(self, writer: ChangeLogWriter, clock: ServerClock) -> None:
        """Record in the log which moments have passed, while no transaction shows it."""
        passed = clock.complete_until(self._durable)
        if passed is not None and passed > self._newest_commit:
            writer.publish([], self._durable, passed=passed)
        if clock.is_due():
            clock.read(self._side_connection())

    def _retain(self, writer: ChangeLogWriter) -> None:
        """Remove history that is older than the retention and that no reader needs."""
        self._valid = writer.retain(datetime.now(UTC) - self._config.retained()).valid
        self._retain_next = time.monotonic() + _RETAIN_SECONDS

    def _decode(
        self,
        decoder: Decoder,
        writer: ChangeLogWriter,
        idle: _IdleFrontier,
        buffer: npt.NDArray[np.uint8],
        fill: int,
    ) -> int:
        """Decode and publish whole transactions; return the number of consumed bytes."""
        done, more = 0, True
        while more:
            try:
                found = decoder.decode(buffer[done:], fill - done, force=fill - done >= _STAGE_BYTES)
            except UnknownColumnsError as unknown:
                self._describe_columns(decoder, writer, unknown)
                continue
            done += found.consumed
            more = found.more
            self._stage(writer, found)
            if found.committed_at is not None or found.errors:
                self._publish(writer, found)
            elif found.durable is not None:
                idle.move(found.durable)
            if found.interference is not None:
                raise self._interference_error(found.interference, uncertain=found.uncertain)
        return done

    def _interference_error(self, interference: DefiniteError, *, uncertain: bool) -> PenstockError:
        """Return the interference; or a transient error, to read it again without rolled-back parts."""
        if not (uncertain and self._in_progress):
            return interference
        self._in_progress = False
        message = "a watermark or heartbeat arrived in a partly rolled back transaction in progress"
        return TransientError(message, "Capture reconnects, to see whether it was rolled back too.")

    def _stage(self, writer: ChangeLogWriter, found: DecodeResult) -> None:
        """Stage parts of transactions in progress, and discard parts that were rolled back."""
        for xid in found.discarded:
            writer.settle(xid, Discarded())
        if found.open_chunks:
            writer.stage(found.open_xid, found.open_chunks)
            self._watch.record_truncate(chunk.table for chunk in found.open_chunks if chunk.kinds >> Image.TRUNCATE & 1)
        for xid, aborted in found.prepared.items():
            writer.settle(xid, Prepared(frozenset(aborted)))

    def _publish(self, writer: ChangeLogWriter, found: DecodeResult) -> None:
        is_news = found.committed_at is not None or found.errors
        if found.durable is None or (not is_news and found.durable <= self._durable):
            return
        writer.publish(
            *(found.chunks, found.durable),
            committed_at=found.committed_at,
            staged=found.staged,
            errors=found.errors,
            last=found.last,
        )
        self._watch.record_truncate(chunk.table for chunk in found.chunks if chunk.kinds >> Image.TRUNCATE & 1)
        self._durable = found.durable
        self._newest_commit = max(self._newest_commit, found.committed_at or 0)


class _Remainder:
    """Bytes of a transaction whose commit has not arrived: they precede the next page."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._fill = 0

    def joined(self, page: Page) -> tuple[npt.NDArray[np.uint8], int]:
        """Return the remaining bytes followed by a page."""
        if not self._fill:
            return page.buffer, page.fill
        total = self._fill + page.fill
        if total > len(self._buffer):
            grown = np.empty(max(total, 2 * len(self._buffer)), np.uint8)
            grown[: self._fill] = self._buffer[: self._fill]
            self._buffer = grown
        self._buffer[self._fill : total] = page.buffer[: page.fill]
        return self._buffer, total

    def keep(self, buffer: npt.NDArray[np.uint8], consumed: int, fill: int) -> None:
        """Keep the bytes that were not consumed."""
        left = buffer[consumed:fill]
        if len(left) > len(self._buffer):
            self._buffer = np.empty(max(len(left), _STAGE_BYTES), np.uint8)
        self._buffer[: len(left)] = left.copy() if buffer is self._buffer else left
        self._fill = len(left)


class _IdleFrontier:
    """A frontier that advanced without a transaction: published at intervals, not each time."""

    def __init__(self) -> None:
        self._lsn: Lsn | None = None
        self._next = 0.0

    def move(self, lsn: Lsn) -> None:
        """Record the latest position."""
        self._lsn = lsn

    def is_due(self) -> bool:
        """Return whether it should be published now."""
        return self._lsn is not None and time.monotonic() >= self._next

    def take(self) -> Lsn | None:
        """Return it for publication."""
        lsn, self._lsn = self._lsn, None
        self._next = time.monotonic() + _IDLE_SECONDS
        return lsn
