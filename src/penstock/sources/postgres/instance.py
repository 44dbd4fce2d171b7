"""Capture: one slot, one connection, all tables, into the change log.

::

    ReplicationStream ─pages─▶ Decoder ─chunks─▶ ChangeLogWriter.publish ─▶ durable ─▶ feedback to the slot

Whole transactions are published in one step, and the slot is confirmed only up to what that made durable. A transaction
that outgrows the buffer is staged in parts. When nothing is in flight, the server's keepalives move the
frontier on, so that an idle table on a busy server holds back no WAL; and the server's clock tells which moments have
passed.

Where somebody interferes with our watermarks or heartbeats, what committed before that is published, and capture stops.
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
from penstock.sources.postgres.additions import current_files, describe_additions
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import ANSWER_SECONDS, connect, connect_replication, connection_error
from penstock.sources.postgres.continuity import continued, require_same_server
from penstock.sources.postgres.decoded import Decoded
from penstock.sources.postgres.decoder import Decoder
from penstock.sources.postgres.facts import Facts
from penstock.sources.postgres.heartbeat import Pulse, ServerClock, SignOfLife
from penstock.sources.postgres.options import Heartbeat, Rules, Watermarks
from penstock.sources.postgres.overlap import Overlap
from penstock.sources.postgres.relations import Refused, Shape, Undescribed
from penstock.sources.postgres.signals import Guard
from penstock.sources.postgres.stream import Page, ReplicationStream, StreamEndedError, StreamOptions
from penstock.sources.postgres.visibility import wait_until_visible
from penstock.sources.postgres.watch import PublicationWatch

__all__ = ["PostgresInstance", "PostgresInstanceFactory"]

_STAGE_BYTES = 16 << 20
_IDLE_SECONDS = 0.2
_RETAIN_SECONDS = 1.0


class PostgresInstanceFactory(InstanceFactory):
    """Makes captures; holds nothing."""

    def instantiate(self, config: InstanceConfig, log: ChangeLog, state: Path) -> PostgresInstance:
        """Make a capture that writes to this log; all that it needs to know is in there."""
        if not isinstance(config, PostgresInstanceConfig):
            raise TypeError(config)
        return PostgresInstance(config, log, state)


class PostgresInstance(Instance):
    """The capture of one Postgres database."""

    def __init__(self, config: PostgresInstanceConfig, log: ChangeLog, state: Path | None = None) -> None:
        self._config = config
        self._log = log
        self._life = SignOfLife(state)
        self._durable = Lsn.ZERO
        self._last: Commit | None = None
        """The last transaction that changed something, when this run began."""
        self._overlap = Overlap(config.source, Lsn.ZERO, Lsn.ZERO, None)
        self._valid = Lsn.ZERO
        self._in_progress = True
        """Whether transactions are asked for while they run. Not where one adds columns (see `_learn`), and not after
        Postgres failed at it: "could not map filenumber", of a table whose DDL was rolled back in part."""
        self._binary = True
        """Whether values are asked for in binary form: not where some column can only be printed by Postgres."""
        self._pulse = Pulse(config.heartbeat, config.heartbeat_interval, config.identity)
        self._watch = PublicationWatch(config, Lsn.ZERO)
        self._retain_next = 0.0
        self._newest = 0
        """The newest commit time of this run: a clock before it is no news."""
        self._asking: psycopg.Connection[Any] | None = None

    def config(self) -> PostgresInstanceConfig:
        """Return the config, with the timeline that is followed."""
        return self._config

    def valid_frontier(self) -> Lsn:
        """Return where the log's history begins."""
        return self._valid

    def durable_frontier(self) -> Lsn:
        """Return what the log has on disk."""
        return self._durable

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Stream into the log until told to stop."""
        with closing(self._log.writer()) as writer:
            frontiers = writer.frontiers()
            self._valid, self._durable, self._last = frontiers.valid, frontiers.durable, frontiers.last
            with self._connecting():
                stream, decoder = self._open(writer)
            connected()
            try:
                with self._connecting():
                    self._capture(stream, decoder, writer, stop, connected)
            except StreamEndedError:
                self._in_progress = False  # Postgres fails at some transactions with DDL only while they run
                raise
            finally:
                stream.stop()
                if self._asking is not None:
                    self._asking.close()

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise connection_error(error, self._config.connection) from error

    def _check_published(
        self, connection: psycopg.Connection[Any], writer: ChangeLogWriter, decoder: Decoder
    ) -> list[TableError]:
        """End the tables whose changes are no longer all sent."""
        self._watch.know_columns(shape.table for shape in decoder.shapes.current.values())
        errors = self._watch.look(connection, self._durable)
        if errors:
            writer.publish([], self._durable, errors=errors)
        self._config = with_fields(self._config, facts=self._watch.facts)
        return errors

    def _truncated_since(self, facts: Facts | None) -> list[TableName]:
        """Return the tables that were truncated, by the log, since the catalogs were last looked at."""
        with closing(self._log.reader()) as reader:
            known, since = reader.tables(), Lsn(facts.at if facts else self._durable)
            extents = (
                reader.extent(name, max(since, table.valid), self._durable)
                for name, table in known.items()
                if max(since, table.valid) < self._durable
            )
            return [extent.table for extent in extents if extent.has(Image.TRUNCATE)]

    def _open(self, writer: ChangeLogWriter) -> tuple[ReplicationStream, Decoder]:
        """Connect, and go on only where that is provably without loss.

        What is asked of the server is asked over another connection than the one that streams. A session that has
        looked at a table remembers its present columns, and would decode older changes with them.
        """
        with connect_replication(self._config.connection, answers_within=ANSWER_SECONDS) as asking:
            found = continued(asking, self._config, self._durable)
            self._config = found.config
            self._overlap = Overlap(self._config.source, found.confirmed, self._durable, self._last)
            truncated = self._truncated_since(self._config.facts)
            self._watch = PublicationWatch(self._config, self._durable, truncated)
            decoder = self._decoder(writer)
            decoder.end_tables(self._check_published(asking, writer, decoder))
            self._look_at_files(asking, decoder)
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
        """Return up to where the slot may be confirmed: what is durable, once the overlap is proven."""
        return self._overlap.confirmable(self._durable)

    def _decoder(self, writer: ChangeLogWriter) -> Decoder:
        """Begin with the columns that each table has by what the log holds of it."""
        with closing(self._log.reader()) as reader:
            logged = reader.tables()
        shapes = []
        for captured in self._config.tables:
            known = logged.get(captured.name)
            if captured.generation > (known.generation if known else 0):
                logged.pop(captured.name, None)
                shapes.append(Shape.of(captured, writer.define(captured.table_schema(), None, captured.generation)))
                continue
            table = captured if known is None else captured.grown(known.schema)
            shapes.append(Shape.of(table, writer.define(table.table_schema(), self._durable)))
        begun = {
            table.name: logged[table.name].begun if table.name in logged else self._durable
            for table in self._config.tables
        }
        ended = [name for name, table in logged.items() if table.error is not None]
        strict = self._config.rules is Rules.STRICT
        return Decoder(
            *(shapes, self._durable, ended),
            truncate_ends=strict,
            guard=self._guard(),
            overlap=self._overlap,
            begun=begun,
        )

    def _guard(self) -> Guard:
        config = self._config
        whole = self._durable == config.start()
        accepted = Lsn(config.accepted_interference)
        return Guard(config.source, config.identity, config.meta_tables(), accepted=accepted, whole=whole)

    def _look_at_files(self, connection: psycopg.Connection[Any], decoder: Decoder) -> None:
        """Remember which file holds each table: what was rewritten before a column was added does not matter to it."""
        files = current_files(connection, [shape.table for shape in decoder.shapes.current.values()])
        decoder.shapes.found_in(files)
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

    def _learn(self, decoder: Decoder, writer: ChangeLogWriter, unknown: Undescribed) -> None:
        """Find out what columns were added to a table.

        In a transaction in progress they are nobody's to see. Then the stream is opened again without such
        transactions: Postgres sends them when they commit, and the catalog has the columns by then.
        """
        if unknown.xid is not None:
            wait_until_visible(self._side(), unknown.xid)
        found = describe_additions(self._side(), unknown.shape.table, unknown.relation)
        if isinstance(found, str) and unknown.xid is None and self._in_progress:
            self._in_progress = False
            message = f"{unknown.shape.name} gains columns in a transaction that has not committed"
            raise TransientError(message, "The stream is opened again, to get that transaction when it has committed.")
        if isinstance(found, str):
            decoder.shapes.learn(unknown.relation, Refused(unknown.shape.name, found))
            return
        version = writer.define(found.table_schema())
        decoder.shapes.learn(unknown.relation, Shape.of(found, version))
        if self._binary and any(column.sent_as_text for column in found.columns):
            self._binary = False
            message = f"{unknown.shape.name} gains a column that only Postgres can print"
            raise TransientError(message, "The stream is opened again, as text.")

    def _side(self) -> psycopg.Connection[Any]:
        """Return a connection for questions beside the stream, to the server that streams."""
        if self._asking is None or self._asking.closed:
            application = f"penstock {self._config.source} aside"
            self._asking = connect(self._config.connection, application, answers_within=ANSWER_SECONDS)
        return self._asking

    def _capture(
        self,
        stream: ReplicationStream,
        decoder: Decoder,
        writer: ChangeLogWriter,
        stop: threading.Event,
        store: Callable[[], None],
    ) -> None:
        rest, idle, clock = _Rest(), _IdleFrontier(), ServerClock()
        while not stop.is_set():
            page = stream.next_page(_IDLE_SECONDS)
            self._life.note(stream.heard)
            if page is not None:
                buffer, fill = rest.joined(page)
                consumed = self._decode(decoder, writer, idle, buffer, fill)
                rest.keep(buffer, consumed, fill)
                stream.give_back(page)
            if idle.due():
                self._publish(writer, Decoded(durable=idle.take()))
            self._tell_clock(writer, clock)
            if decoder.described_again():
                self._watch.hurry()
            if self._watch.due():
                known = self._config.facts
                decoder.end_tables(self._check_published(self._side(), writer, decoder))
                self._look_at_files(self._side(), decoder)
                if known is None or self._config.facts is None or not self._config.facts.same(known):
                    store()
            if self._pulse.due():
                self._pulse.beat(self._side(), self._durable)
            if time.monotonic() >= self._retain_next:
                self._retain(writer)
        store()

    def _tell_clock(self, writer: ChangeLogWriter, clock: ServerClock) -> None:
        """Let the log know which moments have passed, while no transaction says so."""
        passed = clock.passed(self._durable)
        if passed is not None and passed > self._newest:
            writer.publish([], self._durable, passed=passed)
        if clock.due():
            clock.ask(self._side())

    def _retain(self, writer: ChangeLogWriter) -> None:
        """Let go of history that is old enough, and that no reader needs."""
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
        """Decode and publish what is whole; return how many bytes are done with."""
        done, more = 0, True
        while more:
            try:
                found = decoder.decode(buffer[done:], fill - done, force=fill - done >= _STAGE_BYTES)
            except Undescribed as unknown:
                self._learn(decoder, writer, unknown)
                continue
            done += found.consumed
            more = found.more
            self._stage(writer, found)
            if found.committed_at is not None or found.errors:
                self._publish(writer, found)
            elif found.durable is not None:
                idle.move(found.durable)
            if found.interference is not None:
                raise self._end_of(found.interference, uncertain=found.uncertain)
        return done

    def _end_of(self, interference: DefiniteError, *, uncertain: bool) -> PenstockError:
        """Stop; or look again without transactions in progress: they then come without what was rolled back."""
        if not (uncertain and self._in_progress):
            return interference
        self._in_progress = False
        message = "a mark came in a transaction in progress of which a part was rolled back"
        return TransientError(message, "The stream is opened again, to see whether the mark was.")

    def _stage(self, writer: ChangeLogWriter, found: Decoded) -> None:
        """Write what belongs to transactions in progress, and remove what was rolled back."""
        for xid in found.discarded:
            writer.settle(xid, Discarded())
        if found.open_chunks:
            writer.stage(found.open_xid, found.open_chunks)
            self._watch.saw_truncate(chunk.table for chunk in found.open_chunks if chunk.kinds >> Image.TRUNCATE & 1)
        for xid, aborted in found.prepared.items():
            writer.settle(xid, Prepared(frozenset(aborted)))

    def _publish(self, writer: ChangeLogWriter, found: Decoded) -> None:
        news = found.committed_at is not None or found.errors
        if found.durable is None or (not news and found.durable <= self._durable):
            return
        writer.publish(
            *(found.chunks, found.durable),
            committed_at=found.committed_at,
            staged=found.staged,
            errors=found.errors,
            last=found.last,
        )
        self._watch.saw_truncate(chunk.table for chunk in found.chunks if chunk.kinds >> Image.TRUNCATE & 1)
        self._durable = found.durable
        self._newest = max(self._newest, found.committed_at or 0)


class _Rest:
    """Bytes of a transaction whose commit has not arrived: they go before the next page."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._fill = 0

    def joined(self, page: Page) -> tuple[npt.NDArray[np.uint8], int]:
        """Return what is left together with a page."""
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
        """Keep what was not consumed."""
        left = buffer[consumed:fill]
        if len(left) > len(self._buffer):
            self._buffer = np.empty(max(len(left), _STAGE_BYTES), np.uint8)
        self._buffer[: len(left)] = left.copy() if buffer is self._buffer else left
        self._fill = len(left)


class _IdleFrontier:
    """A frontier that moved without a transaction: worth a write now and then, not each time."""

    def __init__(self) -> None:
        self._lsn: Lsn | None = None
        self._next = 0.0

    def move(self, lsn: Lsn) -> None:
        """Remember the latest."""
        self._lsn = lsn

    def due(self) -> bool:
        """Say whether it should be published now."""
        return self._lsn is not None and time.monotonic() >= self._next

    def take(self) -> Lsn | None:
        """Return it, to be published."""
        lsn, self._lsn = self._lsn, None
        self._next = time.monotonic() + _IDLE_SECONDS
        return lsn
