"""Capture: one slot, one connection, all tables, into the change log.

::

    ReplicationStream ─pages─▶ Decoder ─chunks─▶ ChangeLogWriter.publish ─▶ durable ─▶ feedback to the slot

Whole transactions are published in one step, and the slot is confirmed only up to what that made durable. A transaction
that outgrows the buffer is staged in parts. When nothing is in flight, the server's keepalives move the
frontier on, so that an idle table on a busy server holds back no WAL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from penstock.changelog.interface import ChangeLogWriter
from penstock.changelog.sqlite import SqliteLogReader, SqliteLogWriter
from penstock.errors import DefiniteError, TableError
from penstock.positions import Lsn
from penstock.sources.family import Instance, InstanceConfig, InstanceFactory
from penstock.sources.postgres.connection import connect_replication, connection_error
from penstock.sources.postgres.continuity import continued
from penstock.sources.postgres.decoder import Decoded, DecodedTable, Decoder
from penstock.sources.postgres.publication import published_tables
from penstock.sources.postgres.spec import PostgresInstanceConfig
from penstock.sources.postgres.stream import Page, ReplicationStream

__all__ = ["PostgresInstance", "PostgresInstanceFactory"]

_STAGE_BYTES = 16 << 20
_IDLE_SECONDS = 0.2


class PostgresInstanceFactory(InstanceFactory):
    """Makes captures; holds nothing."""

    def instantiate(self, config: InstanceConfig, log: Path) -> PostgresInstance:
        """Make a capture that writes to this log."""
        if not isinstance(config, PostgresInstanceConfig):
            raise TypeError(config)
        return PostgresInstance(config, log)


class PostgresInstance(Instance):
    """The capture of one Postgres database."""

    def __init__(self, config: PostgresInstanceConfig, log: Path) -> None:
        self._config = config
        self._log = log
        self._durable = Lsn.ZERO
        self._valid = Lsn.ZERO

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
        with closing(SqliteLogWriter(self._log)) as writer:
            frontiers = writer.frontiers()
            self._valid, self._durable = frontiers.valid, frontiers.durable
            with self._connecting():
                stream, decoder = self._open(writer)
            connected()
            try:
                self._capture(stream, decoder, writer, stop)
            finally:
                stream.stop()

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise connection_error(error, self._config.connection) from error

    def _check_published(self, connection: psycopg.Connection[Any], writer: ChangeLogWriter) -> None:
        """End the tables that are no longer published (dropped upstream, too): Postgres sends nothing of them."""
        config = self._config
        published = published_tables(connection, config.publication)
        afresh = f"Drop the source with `penstock drop {config.source}` and capture it again."
        if published is None:
            message = f"the publication {config.publication} is gone: changes since {self._durable} are lost"
            raise DefiniteError(message, afresh)
        gone = [table.name for table in config.tables if table.name not in published]
        why = "is not in the publication {} any more, so its changes are not sent"
        errors = [
            TableError(str(name), self._durable + 1, f"{name} {why.format(config.publication)}", afresh)
            for name in gone
        ]
        if errors:
            writer.publish([], self._durable, errors=errors)

    def _open(self, writer: ChangeLogWriter) -> tuple[ReplicationStream, Decoder]:
        """Connect, and go on only where that is provably without loss."""
        config = self._config
        replication = connect_replication(config.connection, f"penstock {config.source}")
        try:
            self._config = continued(replication, config, self._durable)
            self._check_published(replication, writer)
            decoder = self._decoder(writer)
            stream = ReplicationStream(
                replication, config.slot, config.publication, self._durable, self.durable_frontier
            )
        except BaseException:
            replication.close()
            raise
        return stream, decoder

    def _decoder(self, writer: ChangeLogWriter) -> Decoder:
        tables = [DecodedTable.of(table, writer.define(table.table_schema())) for table in self._config.tables]
        with closing(SqliteLogReader(self._log)) as reader:
            ended = {name: table.error for name, table in reader.tables().items() if table.error is not None}
        return Decoder(tables, self._durable, ended)

    def _capture(
        self, stream: ReplicationStream, decoder: Decoder, writer: ChangeLogWriter, stop: threading.Event
    ) -> None:
        rest, idle = _Rest(), _IdleFrontier()
        while not stop.is_set():
            page = stream.next_page(_IDLE_SECONDS)
            if page is not None:
                buffer, fill = rest.joined(page)
                consumed = self._decode(decoder, writer, idle, buffer, fill)
                rest.keep(buffer, consumed, fill)
                stream.give_back(page)
            if idle.due():
                self._publish(writer, Decoded(durable=idle.take()))

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
            found = decoder.decode(buffer[done:], fill - done, force=fill - done >= _STAGE_BYTES)
            done += found.consumed
            more = found.more
            if found.open_chunks:
                writer.stage(found.open_xid, found.open_chunks)
            if found.committed_at is not None:
                self._publish(writer, found)
            elif found.durable is not None:
                idle.move(found.durable)
        return done

    def _publish(self, writer: ChangeLogWriter, found: Decoded) -> None:
        if found.durable is None or (found.committed_at is None and found.durable <= self._durable):
            return
        writer.publish(
            found.chunks, found.durable, committed_at=found.committed_at, staged=found.staged, errors=found.errors
        )
        self._durable = found.durable


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
