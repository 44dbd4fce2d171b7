"""The replication connection: a thread that receives, and nothing else.

::

    socket ─▶ libpq ─▶ pump ─▶ page ─▶ [page, page] ─▶ the caller decodes and writes
       ▲                                                │
       └────────── feedback: durable ◀──────────────────┘

The receiving thread owns the connection. It hands a page over as soon as the caller waits for one and a transaction is
complete, and lets pages grow while the caller is busy: batches get larger with the load by themselves. Postgres sends
each row by itself, so under load the thread pauses between its reads, and pages are handed over some milliseconds
apart: waking up for each row would cost more than decoding it. A transaction after a quiet moment waits for nothing.

A server that is silent for too long is taken for gone: it is asked for a sign of life with every feedback. One that is
busy with a long transaction of others may keep it waiting for half of `wal_sender_timeout`, and no longer.

It sends feedback about once a second, also while the disk is slow, so `wal_sender_timeout` is not hit; the position is
always what the log has made durable, and what the server sent again was found to be what the log has.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import pq, sql

from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import ANSWER_SECONDS
from penstock.sources.postgres.pump import Drained, Pump
from penstock.sources.postgres.slot import SlotInUseError

__all__ = ["Page", "ReplicationStream", "StreamEndedError", "StreamOptions"]

_EPOCH = 946_684_800
_PAGE = 8 << 20
_BUSY = 16 << 10
_COALESCE_SECONDS = 0.001
_SPACING_SECONDS = 0.005
_LONGEST_FEEDBACK_SECONDS = 1.0
_SILENCE_SPARE_SECONDS = 5.0
_UNBOUNDED_SILENCE_SECONDS = 300.0
"""Of a server without `wal_sender_timeout`, which sends no sign of life by itself."""


class StreamEndedError(TransientError):
    """Postgres could not go on with the stream, for a reason that it told."""


@dataclass
class Page:
    """Messages as the pump laid them down: ``buffer[:fill]``."""

    buffer: npt.NDArray[np.uint8]
    fill: int = 0


@dataclass(frozen=True)
class StreamOptions:
    """How the server is asked to send changes."""

    slot: str
    publication: str
    binary: bool = True
    """Values in binary form; as text otherwise."""
    in_progress: bool = True
    """Large transactions while they run, and not only when they commit."""
    two_phase: bool = False
    """Prepared transactions when they are prepared, and not only when they commit (15+)."""
    messages: bool = False
    """Logical messages, too."""

    def clause(self, connection: psycopg.Connection[Any]) -> sql.Composed:
        """Return the options of START_REPLICATION: the newest protocol that the server knows, of those that we do."""
        version = connection.info.server_version // 10_000
        protocol = 4 if version >= 16 else 3 if version == 15 else 2
        options = {
            "proto_version": str(protocol),
            "publication_names": sql.Identifier(self.publication).as_string(connection),
            "binary": str(self.binary).lower(),
            "streaming": "on" if self.in_progress else "off",
        }
        if self.two_phase:
            options["two_phase"] = "on"
        if self.messages:
            options["messages"] = "true"
        told = [sql.SQL("{} {}").format(sql.SQL(name), sql.Literal(value)) for name, value in options.items()]
        return sql.SQL(", ").join(told)


class ReplicationStream:
    """Receives the changes of one slot from its confirmed position on."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        options: StreamOptions,
        confirmable: Callable[[], Lsn],
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._confirmable = confirmable
        self._feedback_seconds, self._silence_seconds = _paces(connection)
        self.heard = time.monotonic()
        """When the server was last heard of."""
        self._start(options)
        self._pump = Pump(self._pgconn)
        self._changed = threading.Condition()
        self._page = Page(np.empty(_PAGE, np.uint8))
        self._spare: Page | None = Page(np.empty(_PAGE, np.uint8))
        self._ready: Page | None = None
        self._wanted = False
        self._handed, self._next_hand_over = 0, 0.0
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="penstock-receive", daemon=True)
        self._thread.start()

    def next_page(self, timeout: float) -> Page | None:
        """Wait for messages; None when there were none. The page is the caller's until `give_back`."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready is not None or self._failure is not None, timeout)
            if self._ready is None and self._failure is not None:
                raise self._failure
            page, self._ready = self._ready, None
            self._wanted = page is None
            return page

    def give_back(self, page: Page) -> None:
        """Return a page for reuse."""
        page.fill = 0
        with self._changed:
            self._spare = page
            self._changed.notify_all()

    def stop(self) -> None:
        """Confirm what is durable, end the thread and close the connection."""
        self._stopping.set()
        self._thread.join()
        self._connection.close()

    def _start(self, options: StreamOptions) -> None:
        """Ask for everything that the slot has: the server begins where it was confirmed, not before."""
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL 0/0 ({})").format(
            sql.Identifier(options.slot), options.clause(self._connection)
        )
        self._pgconn.send_query(command.as_bytes(self._connection))
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._pgconn.is_busy():
            if not select.select([self._pgconn.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                message = f"Postgres did not begin the stream within {ANSWER_SECONDS:g} s"
                raise TransientError(message, "It will be asked again.")
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise _start_error(result, options.slot)
        self._pgconn.nonblocking = 1

    def _receive(self) -> None:
        try:
            self._receive_until_stopped()
        except psycopg.Error as error:
            said = " ".join(str(error).split())
            self._fail(TransientError(f"the connection to Postgres is lost: {said}", "It will be opened again."))
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _receive_until_stopped(self) -> None:
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        confirm_at, full = 0.0, False
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= confirm_at:
                self._send_feedback()
                confirm_at = now + self._feedback_seconds
            if not (full or self._complete()):
                poll.poll(min(confirm_at - now, 0.1) * 1000)
            full = self._fill()
            self._require_life()
            self._hand_over(full, confirm_at)
        self._send_feedback()

    def _require_life(self) -> None:
        """Give up a server from which nothing arrives, although it was asked for an answer every second."""
        now = time.monotonic()
        if now - self.heard > self._silence_seconds:
            message = f"Postgres has not answered for {now - self.heard:.0f} s, and the connection is still open"
            raise TransientError(message, "It will be opened again.")

    def _fill(self) -> bool:
        """Take what the connection has; True when the page has no room for more."""
        page = self._page
        before = page.fill
        page.fill, drained = self._pump.drain(page.buffer, before)
        if page.fill > before or drained is not Drained.IDLE:
            self.heard = time.monotonic()
        if drained is Drained.ENDED:
            message = f"Postgres ended the stream: {self._last_words()}"
            raise StreamEndedError(message, "It will be opened again.")
        if drained is Drained.FULL and page.fill == 0:
            page.buffer = np.empty(self._pump.needed() + _PAGE, np.uint8)
            return False
        return drained is Drained.FULL

    def _complete(self) -> bool:
        """Whether the page holds the end of a transaction, or news of an idle server."""
        return self._pump.boundaries > self._handed

    def _hand_over(self, full: bool, confirm_at: float) -> None:
        """Give the page to the caller if it waits; else let it grow; when it is full, wait for the caller."""
        complete = self._complete()
        if not (full or complete or self._page.fill >= _BUSY):
            return
        with self._changed:
            now = time.monotonic()
            due = full or (complete and self._wanted and now >= self._next_hand_over)
            if due and self._ready is None and self._spare is not None:
                self._next_hand_over = now + _SPACING_SECONDS if self._page.fill >= _BUSY else now
                self._ready, self._page, self._spare = self._page, self._spare, None
                self._handed = self._pump.boundaries
                self._changed.notify_all()
                return
            self._changed.wait(max(0.0, min(confirm_at - now, 0.1)) if full else _COALESCE_SECONDS)

    def _last_words(self) -> str:
        result = self._pgconn.get_result()
        said = result.error_message if result is not None else self._pgconn.error_message
        return " ".join(said.decode(errors="replace").split()) or "without a reason"

    def _send_feedback(self) -> None:
        """Confirm the durable position, and ask where the server stands: its answer moves an idle frontier on."""
        upto = self._confirmable()
        clock = int((time.time() - _EPOCH) * 1_000_000)
        self._pgconn.put_copy_data(b"r" + struct.pack(">QQQQB", upto, upto, upto, clock, 1))
        self._pgconn.flush()


def _paces(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Return how often to send feedback, well inside the server's patience, and after what silence to give it up."""
    row = connection.execute("SHOW wal_sender_timeout").fetchone()
    seconds = _duration(row[0] if row else "0")
    if not seconds:
        return _LONGEST_FEEDBACK_SECONDS, max(ANSWER_SECONDS, _UNBOUNDED_SILENCE_SECONDS)
    return min(_LONGEST_FEEDBACK_SECONDS, seconds / 4), max(ANSWER_SECONDS, seconds / 2 + _SILENCE_SPARE_SECONDS)


def _duration(text: str) -> float:
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) * units.get(text[len(digits) :], 0.001)


def _start_error(result: Any, slot: str) -> PenstockError:
    if result is None:
        return TransientError("Postgres ended the connection without a word", "It will be opened again.")
    said = " ".join(result.error_message.decode(errors="replace").split())
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if code == "55006":
        return SlotInUseError(
            f"the replication slot {slot} is in use: {said}",
            "Stop the other Penstock that reads this slot, or give this source another name.",
        )
    if not code or code.startswith(("08", "53", "57")):
        return TransientError(f"Postgres ended the connection: {said}", "It will be opened again.")
    return DefiniteError(
        f"Postgres refused to stream from slot {slot}: {said}", "Mend that upstream, then start again."
    )
