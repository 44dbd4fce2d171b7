"""Detect interference: writes by other sessions where only Penstock writes its watermarks and heartbeats.

**Markers.** A watermark or heartbeat in the stream is a `Marker`:

::

    logical message, prefix penstock.watermark or penstock.heartbeat ─┐
    change of dblog_meta.watermarks or dblog_meta.heartbeats ─────────┴─▶ Marker: kind, token, or violation

Markers are rare, so this module reads them instead of the compiled scan. Bytes in, values out. A message that violates
the protocol raises; a well-formed one that Penstock never writes is a marker with a violation.

**MarkerMonitor** collects the markers of one scan, with the transaction of each, and has them checked:

::

    scan ─MARKER─▶ read ─▶ LocatedMarker ┬─ its transaction commits in this scan ─▶ first_interference
                                         ├─ it is in no transaction ──────────────▶ first_interference
                                         └─ its transaction arrives in parts ─▶ kept with the open transaction
                                                                               ─▶ check, at the commit

A marker is checked at the commit of its transaction, because a marker that is rolled back does not count. In a
streamed block, a change carries the xid of its subtransaction, but a logical message carries the xid of the whole
transaction. So if a subtransaction was rolled back, it is unknown whether the message was rolled back with it, and
capture has to request the transaction as a whole. A prepared transaction is the exception: its markers are checked at
PREPARE. Penstock never prepares a transaction, and if capture restarts before the commit, the server does not resend
the markers.

**InterferenceGuard** checks markers against the sequences that Penstock itself can write. It does no I/O. Allowed are,
for each window id (an incremental snapshot or a repair; several may overlap):

::

    LOW n ─▶ HIGH n ─▶ LOW n+1 ─▶ …            the normal sequence
    LOW n ─▶ LOW n, or a higher one            killed inside the window; it reads that window again
    HIGH n ─▶ LOW n                            killed before it had stored the rows of the window
    HIGH n, as the first marker                capture started between the two; not if it has seen the whole stream

Numbers never decrease, and a HIGH follows its LOW. Markers that Postgres resends are not checked again: the decoder
drops them by their position. Heartbeats count from 1 at each start of capture.

**Which source wrote a token** depends on where it is. A table has one row, for one source: any other identity in it is
a foreign write. Logical messages reach every source of the database, because publications do not filter them. There,
another identity belongs to another source, and the message is skipped. A message under one of the two prefixes that
holds no valid token is interference in both cases. The prefixes belong to this format of the tokens: another format
needs another prefix, and messages with an unknown prefix are skipped.

**Why interference stops the source.** The stream itself is correct at that point, and all of it up to there is
published. But open windows can no longer be distinguished from forged ones, so they must not end: they wait until the
log reaches their HIGH, which it does not. The foreign write stays in the stream, so capture would find it at each
start; `accepted` is the position up to which an operator has accepted interference.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import DefiniteError, ProtocolError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.pgoutput.control_messages import MARKER_TABLE, PROTOCOL_HINT
from penstock.sources.postgres.pgoutput.relations import Relation
from penstock.sources.postgres.replication.heartbeat import Beat
from penstock.sources.postgres.replication.watermark import MalformedTokenError, Mark, Watermark

__all__ = ["InterferenceGuard", "LocatedMarker", "Marker", "MarkerKind", "MarkerMonitor", "read_change", "read_message"]

_COLUMNS = (("id", 23), ("token", 25))
"""Columns of the tables in ``dblog_meta``: an integer and a text."""
_FOREIGN_WRITES = {"I": "a row was inserted", "D": "a row was deleted", "T": "the table was truncated"}


class MarkerKind(enum.StrEnum):
    """The kind of a marker."""

    WATERMARK = "watermark"
    HEARTBEAT = "heartbeat"

    @property
    def prefix(self) -> str:
        """The prefix of its logical messages."""
        return f"penstock.{self}"

    @property
    def table(self) -> TableName:
        """The table whose single row holds it."""
        return TableName("dblog_meta", f"{self}s")


@dataclass(frozen=True)
class Marker:
    """A watermark or heartbeat, or a foreign write in its place."""

    kind: MarkerKind
    in_table: bool
    """Whether it is a change of a table; otherwise it is a logical message."""
    token: str = ""
    violation: str = ""
    """What was written that Penstock never writes; then there is no token."""

    def location(self) -> str:
        """Name the place of the marker, for messages."""
        return str(self.kind.table) if self.in_table else f"logical messages with the prefix {self.kind.prefix}"


def read_message(message: bytes) -> tuple[Marker | None, Lsn | None]:
    """Read a logical message, starting at its kind byte; the marker is None for an unknown prefix.

    A message that is not part of a transaction is returned with its own position.
    """
    try:
        flags, lsn = struct.unpack_from(">BQ", message, 1)
        end = message.index(0, 10)
        (size,) = struct.unpack_from(">I", message, end + 1)
        prefix, content = message[10:end].decode("utf-8", "replace"), message[end + 5 :]
        if size != len(content):
            raise ValueError(size)
        position = None if flags & 1 else Lsn(lsn)
    except (struct.error, ValueError) as error:
        raise _malformed(message) from error
    kind = next((kind for kind in MarkerKind if kind.prefix == prefix), None)
    return None if kind is None else _with_token(kind, content, in_table=False), position


def read_change(message: bytes, relation: Relation) -> Marker:
    """Read a change of a marker table, starting at its kind byte: Penstock only updates row 1."""
    kind = next(kind for kind in MarkerKind if kind.table == relation.table)
    operation = chr(message[0])
    if operation in _FOREIGN_WRITES:
        return Marker(kind, in_table=True, violation=_FOREIGN_WRITES[operation])
    if tuple((column.name, column.oid) for column in relation.columns) != _COLUMNS:
        return Marker(kind, in_table=True, violation="the columns of the table were changed")
    try:
        key, token = _new_row(message)
    except (struct.error, ValueError, IndexError) as error:
        raise _malformed(message) from error
    if key not in (b"1", struct.pack(">i", 1)):
        return Marker(kind, in_table=True, violation="a row other than id = 1 was updated")
    if token is None:
        return Marker(kind, in_table=True, violation="the row was updated without a token")
    return _with_token(kind, token, in_table=True)


def _with_token(kind: MarkerKind, content: bytes, *, in_table: bool) -> Marker:
    try:
        return Marker(kind, in_table, content.decode())
    except UnicodeDecodeError:
        return Marker(kind, in_table, violation="the content is not UTF-8 text")


def _new_row(message: bytes) -> tuple[bytes | None, ...]:
    """Return the values of an update's new row; an old row or key may precede it."""
    at = 5
    if message[at : at + 1] in (b"K", b"O"):
        _, at = _row(message, at + 1)
    if message[at : at + 1] != b"N":
        raise ValueError(at)
    values, end = _row(message, at + 1)
    if end != len(message) or len(values) != len(_COLUMNS):
        raise ValueError(end)
    return values


def _row(message: bytes, at: int) -> tuple[tuple[bytes | None, ...], int]:
    (count,) = struct.unpack_from(">H", message, at)
    values: list[bytes | None] = []
    at += 2
    for _ in range(count):
        tag, at = message[at : at + 1], at + 1
        if tag in (b"t", b"b"):
            (size,) = struct.unpack_from(">I", message, at)
            value = message[at + 4 : at + 4 + size]
            if len(value) != size:
                raise ValueError(size)
            values.append(value)
            at += 4 + size
        elif tag in (b"n", b"u"):
            values.append(None)
        else:
            raise ValueError(tag)
    return tuple(values), at


def _malformed(message: bytes) -> ProtocolError:
    problem = f"malformed replication message ({message[:1].decode('latin-1')!r}) received from Postgres"
    return ProtocolError(problem, PROTOCOL_HINT)


@dataclass(frozen=True)
class LocatedMarker:
    """A marker with its place in the stream."""

    at: int
    """Offset in the buffer."""
    transaction: int
    """Index of its transaction among those of the scan."""
    xid: int
    """The xid of its transaction; in a streamed block, of its subtransaction."""
    position: Lsn | None
    """The position of a message outside any transaction."""
    marker: Marker


class MarkerMonitor:
    """Collects the markers of one scan and checks them."""

    def __init__(self, guard: InterferenceGuard | None, start: Lsn) -> None:
        """Check markers after `start`; without a guard, check none."""
        self._guard = guard
        self._start = start
        self._marker_tables: list[Relation] = []
        self.markers: list[LocatedMarker] = []

    def slot_of(self, relation: Relation) -> int | None:
        """Return the scan's slot of a marker table; None for any other table."""
        if self._guard is None or relation.table not in self._guard.tables:
            return None
        if relation not in self._marker_tables:
            self._marker_tables.append(relation)
        return MARKER_TABLE - self._marker_tables.index(relation)

    def read(self, message: bytes, at: int, transaction: int | None, xid: int, slots: Mapping[int, int]) -> None:
        """Record a message, without the xid that it has in a streamed block; `slots` maps relations to their slots."""
        if message[:1] == b"M":
            marker, position = read_message(message)
            if (position is None) != (transaction is not None):
                problem = "logical message received from Postgres inside a transaction that it does not belong to"
                raise ProtocolError(problem, PROTOCOL_HINT)
            self._note([] if marker is None else [marker], at, transaction, xid, position)
        else:
            found = (slots.get(relation, 0) for relation in _relations(message))
            changes = [
                read_change(message, self._marker_tables[MARKER_TABLE - slot]) for slot in found if slot <= MARKER_TABLE
            ]
            self._note(changes, at, transaction, xid)

    def _note(
        self, markers: Iterable[Marker], at: int, transaction: int | None, xid: int, position: Lsn | None = None
    ) -> None:
        xid = 0 if transaction is None else xid
        self.markers += [LocatedMarker(at, transaction or 0, xid, position, marker) for marker in markers]

    @property
    def has_nontransactional(self) -> bool:
        """Whether a marker outside any transaction was read."""
        return any(located.position is not None for located in self.markers)

    def first_interference(
        self, upto: int, lsns: npt.NDArray[np.int64], earlier: Sequence[LocatedMarker] = ()
    ) -> tuple[int, DefiniteError] | None:
        """Check the markers before offset `upto`; return the number of transactions before interference, and the error.

        `lsns` are the positions of the transactions in the buffer; `earlier` are markers of the first of them that
        arrived with an earlier part.
        """
        closed = [located for located in self.markers if located.at < upto]
        for located in [*earlier, *closed]:  # the stream is ordered by position
            nontransactional = located.position is not None
            lsn = located.position if located.position is not None else Lsn(int(lsns[located.transaction]))
            if (error := self._check(located, lsn)) is not None:
                return int(np.searchsorted(lsns, lsn)) if nontransactional else located.transaction, error
        return None

    def check(self, markers: Iterable[LocatedMarker], lsn: Lsn, xid: int) -> DefiniteError | None:
        """Check the markers of a transaction that arrived in parts, at its commit."""
        errors = (self._check(located, lsn, xid) for located in markers)
        return next((error for error in errors if error is not None), None)

    def _check(self, located: LocatedMarker, lsn: Lsn, xid: int | None = None) -> DefiniteError | None:
        """Check one marker; resent markers were checked before."""
        if self._guard is None or lsn <= self._start:
            return None
        return self._guard.check(located.marker, lsn, located.xid if xid is None else xid)


def _relations(message: bytes) -> list[int]:
    """Return the relation ids of a change that the scan found well-formed."""
    ids = message[6:] if message[:1] == b"T" else message[1:5]
    return [int.from_bytes(ids[at : at + 4], "big") for at in range(0, len(ids), 4)]


_FOREIGN = "a token of another source was written"
_MALFORMED = "a text that is no token of Penstock was written"


class InterferenceGuard:
    """Checks the markers of one stream, in commit order."""

    def __init__(
        self,
        source: str,
        identity: str,
        tables: Collection[TableName] = (),
        *,
        accepted: Lsn = Lsn.ZERO,
        whole: bool = False,
    ) -> None:
        """Guard a source and its marker tables; `whole` says that the stream is seen from its very beginning."""
        self.tables = frozenset(tables)
        self._source = source
        self._identity = identity
        self._accepted = accepted
        self._whole = whole
        self._last: dict[str, Watermark] = {}
        """The newest watermark of each window id."""
        self._beat = 0

    def check(self, marker: Marker, lsn: Lsn, xid: int) -> DefiniteError | None:
        """Return the interference, if any, of a marker whose transaction (0 for none) committed at a position."""
        if lsn <= self._accepted:
            self._whole = False
            return None
        violation = marker.violation or self._check_token(marker)
        return self._interference(marker, violation, lsn, xid) if violation else None

    def _check_token(self, marker: Marker) -> str:
        try:
            token = (Watermark if marker.kind is MarkerKind.WATERMARK else Beat).parse(marker.token)
        except MalformedTokenError:
            return _MALFORMED
        if token.identity != self._identity:
            return _FOREIGN if marker.in_table else ""
        return self._check_watermark(token) if isinstance(token, Watermark) else self._check_beat(token)

    def _check_watermark(self, found: Watermark) -> str:
        last = self._last.get(found.window)
        self._last[found.window] = found
        if last is None:
            return "a HIGH watermark arrived without its LOW" if found.mark is Mark.HIGH and self._whole else ""
        if found.mark is Mark.LOW:
            return "" if found.number >= last.number else "a LOW watermark went back to an earlier window"
        follows = last.mark is Mark.LOW and found.number == last.number
        return "" if follows else "a HIGH watermark arrived without its LOW"

    def _check_beat(self, found: Beat) -> str:
        last, self._beat = self._beat, found.number
        return "" if found.number == 1 or found.number > last else "a heartbeat was repeated"

    def _interference(self, marker: Marker, violation: str, lsn: Lsn, xid: int) -> DefiniteError:
        by = f"by transaction {xid}, " if xid else ""
        message = f"interference with {marker.location()}: {violation}, {by}at {lsn}; all earlier changes are captured"
        return DefiniteError(
            message,
            "Find the session that writes there and stop it. Then stop `penstock run` and accept the foreign writes:"
            f" ALTER SOURCES {self._source} ACCEPT INTERFERENCE;",
        )
