"""The replication connection: a thread that receives messages and sends feedback, and does nothing else.

::

    socket ─▶ libpq ─▶ pump ─▶ page ─▶ [page, page] ─▶ the caller decodes and writes
       ▲                                                │
       └────────── feedback: durable ◀──────────────────┘

The receiving thread owns the connection. It hands a page over as soon as the caller waits for one and a transaction is
complete, and lets pages grow while the caller is busy, so batches grow with the load. Postgres sends each row
separately. Under load the thread therefore pauses between reads and hands pages over some milliseconds apart, because
waking up for each row would cost more than decoding it. A transaction after an idle period is handed over at once.

Each feedback message requests a reply. A server that sends nothing for too long is considered lost. A server that is
busy with a long transaction of other sessions may delay its reply by half of `wal_sender_timeout`, and no longer.

The thread sends feedback about once a second, even while the disk is slow, so `wal_sender_timeout` does not expire. The
confirmed position is always durable in the log, and resent transactions have been verified against the log.
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
from penstock.sources.postgres.replication.pump import Drained, Pump
from penstock.sources.postgres.replication.slot import SlotInUseError

__all__ = ["Page", "ReplicationStream", "StreamEndedError", "StreamOptions"]

_EPOCH = 946_684_800
_PAGE = 8 << 20
_BUSY = 16 << 10
_COALESCE_SECONDS = 0.001
_SPACING_SECONDS = 0.005
_LONGEST_FEEDBACK_SECONDS = 1.0
_SILENCE_SPARE_SECONDS = 5.0
_UNBOUNDED_SILENCE_SECONDS = 300.0
"""For a server without `wal_sender_timeout`, which sends no keepalives by itself."""


class StreamEndedError(TransientError):
    """Postgres ended the stream and reported a reason."""


@dataclass
class Page:
    """Messages as the pump wrote them: ``buffer[:fill]``."""

    buffer: npt.NDArray[np.uint8]
    fill: int = 0


@dataclass(frozen=True)
class StreamOptions:
    """Options of START_REPLICATION."""

    slot: str
    publication: str
    binary: bool = True
    """Send values in binary form; otherwise as text."""
    in_progress: bool = True
    """Stream large transactions while they run, not only at their commit."""
    two_phase: bool = False
    """Send prepared transactions at PREPARE, not only at their commit (Postgres 15 and later)."""
    messages: bool = False
    """Send logical messages too."""

    def clause(self, connection: psycopg.Connection[Any]) -> sql.Composed:
        """Return the options of START_REPLICATION, with the newest protocol that server and decoder both support."""
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
        clauses = [sql.SQL("{} {}").format(sql.SQL(name), sql.Literal(value)) for name, value in options.items()]
        return sql.SQL(", ").join(clauses)


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
        self._feedback_seconds, self._silence_seconds = _feedback_intervals(connection)
        self.last_received = time.monotonic()
        """When the server last sent something, by the monotonic clock."""
        self._start(options)
        self._pump = Pump(self._pgconn)
        self._changed = threading.Condition()
        self._page = Page(np.empty(_PAGE, np.uint8))
        self._spare: Page | None = Page(np.empty(_PAGE, np.uint8))
        self._ready: Page | None = None
        self._is_awaited = False
        self._handed, self._next_hand_over = 0, 0.0
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="penstock-receive", daemon=True)
        self._thread.start()

    def next_page(self, timeout: float) -> Page | None:
        """Wait for messages; return None on timeout. The page belongs to the caller until `release`."""
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready is not None or self._failure is not None, timeout)
            if self._ready is None and self._failure is not None:
                raise self._failure
            page, self._ready = self._ready, None
            self._is_awaited = page is None
            return page

    def release(self, page: Page) -> None:
        """Return a page for reuse."""
        page.fill = 0
        with self._changed:
            self._spare = page
            self._changed.notify_all()

    def stop(self) -> None:
        """Confirm the durable position, end the thread and close the connection."""
        self._stopping.set()
        self._thread.join()
        self._connection.close()

    def _start(self, options: StreamOptions) -> None:
        """Start replication at 0/0: the server then begins at the slot's confirmed position."""
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL 0/0 ({})").format(
            sql.Identifier(options.slot), options.clause(self._connection)
        )
        self._pgconn.send_query(command.as_bytes(self._connection))
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._pgconn.is_busy():
            if not select.select([self._pgconn.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                message = f"Postgres did not begin the stream within {ANSWER_SECONDS:g} s"
                raise TransientError(message, "Capture retries automatically.")
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise _start_error(result, options.slot)
        self._pgconn.nonblocking = 1

    def _receive(self) -> None:
        try:
            self._receive_until_stopped()
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            self._fail(
                TransientError(f"lost the connection to Postgres: {reason}", "Capture reconnects automatically.")
            )
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
            if not (full or self._has_complete_transaction()):
                poll.poll(min(confirm_at - now, 0.1) * 1000)
            full = self._fill()
            self._check_silence()
            self._hand_over(full, confirm_at)
        self._send_feedback()

    def _check_silence(self) -> None:
        """Raise if the server has sent nothing for too long, although each feedback requests a reply."""
        now = time.monotonic()
        if now - self.last_received > self._silence_seconds:
            message = f"Postgres has not answered for {now - self.last_received:.0f} s, although the connection is open"
            raise TransientError(message, "Capture reconnects automatically.")

    def _fill(self) -> bool:
        """Read what the connection has received; return True if the page is full."""
        page = self._page
        before = page.fill
        page.fill, drained = self._pump.drain(page.buffer, before)
        if page.fill > before or drained is not Drained.IDLE:
            self.last_received = time.monotonic()
        if drained is Drained.ENDED:
            message = f"Postgres ended the stream: {self._end_reason()}"
            raise StreamEndedError(message, "Capture reconnects automatically.")
        if drained is Drained.FULL and page.fill == 0:
            page.buffer = np.empty(self._pump.needed() + _PAGE, np.uint8)
            return False
        return drained is Drained.FULL

    def _has_complete_transaction(self) -> bool:
        """Whether the page holds the end of a transaction, or a keepalive of an idle server."""
        return self._pump.boundaries > self._handed

    def _hand_over(self, full: bool, confirm_at: float) -> None:
        """Give the page to a waiting caller; otherwise let it grow. If it is full, wait for the caller."""
        complete = self._has_complete_transaction()
        if not (full or complete or self._page.fill >= _BUSY):
            return
        with self._changed:
            now = time.monotonic()
            due = full or (complete and self._is_awaited and now >= self._next_hand_over)
            if due and self._ready is None and self._spare is not None:
                self._next_hand_over = now + _SPACING_SECONDS if self._page.fill >= _BUSY else now
                self._ready, self._page, self._spare = self._page, self._spare, None
                self._handed = self._pump.boundaries
                self._changed.notify_all()
                return
            self._changed.wait(max(0.0, min(confirm_at - now, 0.1)) if full else _COALESCE_SECONDS)

    def _end_reason(self) -> str:
        result = self._pgconn.get_result()
        reason = result.error_message if result is not None else self._pgconn.error_message
        return " ".join(reason.decode(errors="replace").split()) or "no reason given"

    def _send_feedback(self) -> None:
        """Confirm the durable position and request a reply: the reply advances the frontier of an idle server."""
        upto = self._confirmable()
        clock = int((time.time() - _EPOCH) * 1_000_000)
        self._pgconn.put_copy_data(b"r" + struct.pack(">QQQQB", upto, upto, upto, clock, 1))
        self._pgconn.flush()


def _feedback_intervals(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Return the feedback interval, well below `wal_sender_timeout`, and the silence after which the server is lost."""
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
        return TransientError("Postgres closed the connection without a reason", "Capture reconnects automatically.")
    reason = " ".join(result.error_message.decode(errors="replace").split())
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if code == "55006":
        return SlotInUseError(
            f"replication slot {slot} is in use: {reason}",
            "Stop the other Penstock that reads this slot, or create this source under another name.",
        )
    if not code or code.startswith(("08", "53", "57")):
        return TransientError(f"Postgres closed the connection: {reason}", "Capture reconnects automatically.")
    return DefiniteError(
        f"Postgres rejected streaming from slot {slot}: {reason}", "Fix the error on the server, then restart."
    )
