"""Signs: what the stream says of watermarks and heartbeats, before anybody judges it.

::

    logical message, prefix penstock.watermark or penstock.heartbeat ─┐
    change of dblog_meta.watermarks or dblog_meta.heartbeats ─────────┴─▶ Sign: subject, token, or what is wrong

They are rare, so they are read here and not in the compiled scan. Bytes in, values out. A message that does not
follow the protocol raises; one that does, and says what none of ours may say, is a sign with something wrong.

Hearing: which signs one scan of the stream met, whose transactions they are of, and whether they are all right.

::

    scan ─TOLD─▶ hear ─▶ Heard ┬─ its transaction commits in this scan ─▶ disturbed
                               ├─ it is in no transaction ──────────────▶ disturbed
                               └─ it comes in parts ─▶ kept with the open transaction ─▶ judge, at its commit

Nothing is judged before its commit: what is rolled back never counts. In a block, a change has the xid of its
subtransaction, but a message that of the whole transaction: whether it was rolled back with a part of that can then not
be told, and capture has to ask for the transaction as a whole. A transaction that is prepared is the
exception, and is judged then. We never prepare one; and should capture start anew before its commit, its signs are
not sent again.

Interference: does anybody else write where only we mark windows and beat? Pure: signs in, a verdict out.

What a Penstock can write, and so what is allowed, of each window id (a chunked copy, a repair; several may overlap):

::

    LOW n ─▶ HIGH n ─▶ LOW n+1 ─▶ …            as it should be
    LOW n ─▶ LOW n, or a higher one            it was killed in between, and reads that window again
    HIGH n ─▶ LOW n                            it was killed before it had kept what it read
    HIGH n, first of all                       capture began between the two; not where it saw everything from the start

Numbers never go back, and a HIGH follows its LOW. What Postgres sends again is not judged again: the decoder drops it
by its position. Heartbeats count from 1 each time capture starts.

**Whose a token is** depends on where it stands. A table has one row, for one source: any other identity in it is a
foreign write. Logical messages come to everybody: each source of a database sees those of all others, as publications
do not filter them. So there another identity is another source's, and is passed over. A message under one of our two
prefixes that is no token at all is nobody's, and is interference in both cases. The prefixes belong to this form of
the tokens: another form needs another prefix, and messages with an unknown one are passed over.

**Why it stops the source.** Nothing of the stream is wrong at that point, and all of it up to there is published. But
the windows that are open can no longer be told from made-up ones, so they must not end: they wait for the log to
reach their HIGH, which it does not. What is found stays in the stream, so capture would find it at each start;
`accepted` is the position up to which somebody has looked at it, and said that it is settled.
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
from penstock.sources.postgres.control import REPORT
from penstock.sources.postgres.heartbeat import Beat
from penstock.sources.postgres.relations import Relation
from penstock.sources.postgres.scan import WATCHED
from penstock.sources.postgres.watermark import MalformedTokenError, Mark, Watermark

__all__ = ["Guard", "Heard", "Hearing", "Sign", "Subject", "read_change", "read_message"]

_COLUMNS = (("id", 23), ("token", 25))
"""What the tables of ``dblog_meta`` have: an integer and a text."""
_FOREIGN_WRITES = {"I": "a row was inserted", "D": "a row was deleted", "T": "the table was truncated"}


class Subject(enum.StrEnum):
    """What a sign is of."""

    WATERMARK = "watermark"
    HEARTBEAT = "heartbeat"

    @property
    def prefix(self) -> str:
        """The prefix of its logical messages."""
        return f"penstock.{self}"

    @property
    def table(self) -> TableName:
        """The table of which it is the one row."""
        return TableName("dblog_meta", f"{self}s")


@dataclass(frozen=True)
class Sign:
    """A watermark or heartbeat, or what stands in the place of one."""

    subject: Subject
    in_table: bool
    """Whether it is a change of a table; else it is a logical message."""
    token: str = ""
    wrong: str = ""
    """What was done that we never do; then there is no token."""

    def place(self) -> str:
        """Name where it stands, for people."""
        return str(self.subject.table) if self.in_table else f"logical messages with the prefix {self.subject.prefix}"


def read_message(message: bytes) -> tuple[Sign | None, Lsn | None]:
    """Read a logical message, from its kind byte on; None for a prefix that we do not know.

    With its own position when it is not part of a transaction.
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
    subject = next((subject for subject in Subject if subject.prefix == prefix), None)
    return None if subject is None else _with_token(subject, content, in_table=False), position


def read_change(message: bytes, relation: Relation) -> Sign:
    """Read a change of one of the tables, from its kind byte on: only an update of row 1 is one of ours."""
    subject = next(subject for subject in Subject if subject.table == relation.table)
    kind = chr(message[0])
    if kind in _FOREIGN_WRITES:
        return Sign(subject, in_table=True, wrong=_FOREIGN_WRITES[kind])
    if tuple((column.name, column.oid) for column in relation.columns) != _COLUMNS:
        return Sign(subject, in_table=True, wrong="the columns of the table were changed")
    try:
        key, token = _new_row(message)
    except (struct.error, ValueError, IndexError) as error:
        raise _malformed(message) from error
    if key not in (b"1", struct.pack(">i", 1)):
        return Sign(subject, in_table=True, wrong="a row other than id = 1 was updated")
    if token is None:
        return Sign(subject, in_table=True, wrong="its row was updated without a token")
    return _with_token(subject, token, in_table=True)


def _with_token(subject: Subject, content: bytes, *, in_table: bool) -> Sign:
    try:
        return Sign(subject, in_table, content.decode())
    except UnicodeDecodeError:
        return Sign(subject, in_table, wrong="it holds no text")


def _new_row(message: bytes) -> tuple[bytes | None, ...]:
    """Return the values of an update's new row; an old row or key may stand before it."""
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
    said = f"a malformed replication message ({message[:1].decode('latin-1')!r}) arrived from Postgres"
    return ProtocolError(said, REPORT)


@dataclass(frozen=True)
class Heard:
    """A sign, and whose it is."""

    at: int
    """Where in the buffer it stands."""
    transaction: int
    """The place of its transaction among those of the scan."""
    xid: int
    """Of its transaction; of its subtransaction, where it came in a block."""
    position: Lsn | None
    """Of a message that is in no transaction."""
    sign: Sign


class Hearing:
    """What was heard since the last `clear`."""

    def __init__(self, guard: Guard | None, start: Lsn) -> None:
        """Judge what follows `start`; without a guard, nothing."""
        self._guard = guard
        self._start = start
        self._watched: list[Relation] = []
        self.heard: list[Heard] = []

    def slot_of(self, relation: Relation) -> int | None:
        """Return the slot by which the scan knows a table that is listened to; None for all others."""
        if self._guard is None or relation.table not in self._guard.tables:
            return None
        if relation not in self._watched:
            self._watched.append(relation)
        return WATCHED - self._watched.index(relation)

    def hear(self, message: bytes, at: int, transaction: int | None, xid: int, slots: Mapping[int, int]) -> None:
        """Take note of a message, without the xid that it has in a block; `slots` are those of the relations."""
        if message[:1] == b"M":
            sign, position = read_message(message)
            if (position is None) != (transaction is not None):
                said = "a logical message arrived from Postgres in a transaction that it is not of"
                raise ProtocolError(said, REPORT)
            self._note([] if sign is None else [sign], at, transaction, xid, position)
        else:
            found = (slots.get(relation, 0) for relation in _relations(message))
            changes = [read_change(message, self._watched[WATCHED - slot]) for slot in found if slot <= WATCHED]
            self._note(changes, at, transaction, xid)

    def _note(
        self, signs: Iterable[Sign], at: int, transaction: int | None, xid: int, position: Lsn | None = None
    ) -> None:
        xid = 0 if transaction is None else xid
        self.heard += [Heard(at, transaction or 0, xid, position, sign) for sign in signs]

    @property
    def outside(self) -> bool:
        """Whether something was heard that is in no transaction."""
        return any(heard.position is not None for heard in self.heard)

    def disturbed(
        self, upto: int, lsns: npt.NDArray[np.int64], earlier: Sequence[Heard] = ()
    ) -> tuple[int, DefiniteError] | None:
        """Judge what was heard in a buffer before `upto`; return how many transactions precede interference, and it.

        `lsns` are the positions of the transactions in the buffer, `earlier` what was heard of the first of them
        before.
        """
        closed = [heard for heard in self.heard if heard.at < upto]
        for heard in [*earlier, *closed]:  # the stream is in the order of positions
            outside = heard.position is not None
            lsn = heard.position if heard.position is not None else Lsn(int(lsns[heard.transaction]))
            if (wrong := self._judge(heard, lsn)) is not None:
                return int(np.searchsorted(lsns, lsn)) if outside else heard.transaction, wrong
        return None

    def judge(self, signs: Iterable[Heard], lsn: Lsn, xid: int) -> DefiniteError | None:
        """Judge the signs of a transaction that came in parts, at its commit."""
        verdicts = (self._judge(heard, lsn, xid) for heard in signs)
        return next((wrong for wrong in verdicts if wrong is not None), None)

    def _judge(self, heard: Heard, lsn: Lsn, xid: int | None = None) -> DefiniteError | None:
        """What the server sends again was judged before."""
        if self._guard is None or lsn <= self._start:
            return None
        return self._guard.judge(heard.sign, lsn, heard.xid if xid is None else xid)


def _relations(message: bytes) -> list[int]:
    """Return the relations of a change that the scan found well-formed."""
    ids = message[6:] if message[:1] == b"T" else message[1:5]
    return [int.from_bytes(ids[at : at + 4], "big") for at in range(0, len(ids), 4)]


_FOREIGN = "the token of another source was written"
_MALFORMED = "a text that is no token of Penstock was written"


class Guard:
    """Judges the signs of one stream, in the order of their commits."""

    def __init__(
        self,
        source: str,
        identity: str,
        tables: Collection[TableName] = (),
        *,
        accepted: Lsn = Lsn.ZERO,
        whole: bool = False,
    ) -> None:
        """Guard a source, with those tables that are its own; `whole`: its stream is seen from its very beginning."""
        self.tables = frozenset(tables)
        self._source = source
        self._identity = identity
        self._accepted = accepted
        self._whole = whole
        self._last: dict[str, Watermark] = {}
        """The newest watermark of each window id."""
        self._beat = 0

    def judge(self, sign: Sign, lsn: Lsn, xid: int) -> DefiniteError | None:
        """Return what is wrong with a sign of a transaction (0 for none) that committed at a position."""
        if lsn <= self._accepted:
            self._whole = False
            return None
        why = sign.wrong or self._judge_token(sign)
        return self._interference(sign, why, lsn, xid) if why else None

    def _judge_token(self, sign: Sign) -> str:
        try:
            token = (Watermark if sign.subject is Subject.WATERMARK else Beat).parse(sign.token)
        except MalformedTokenError:
            return _MALFORMED
        if token.identity != self._identity:
            return _FOREIGN if sign.in_table else ""
        return self._judge_watermark(token) if isinstance(token, Watermark) else self._judge_beat(token)

    def _judge_watermark(self, found: Watermark) -> str:
        last = self._last.get(found.window)
        self._last[found.window] = found
        if last is None:
            return "a HIGH watermark came without its LOW" if found.mark is Mark.HIGH and self._whole else ""
        if found.mark is Mark.LOW:
            return "" if found.number >= last.number else "a LOW watermark went back to an earlier window"
        follows = last.mark is Mark.LOW and found.number == last.number
        return "" if follows else "a HIGH watermark came without its LOW"

    def _judge_beat(self, found: Beat) -> str:
        last, self._beat = self._beat, found.number
        return "" if found.number == 1 or found.number > last else "a heartbeat came again"

    def _interference(self, sign: Sign, why: str, lsn: Lsn, xid: int) -> DefiniteError:
        by = f"by transaction {xid}, " if xid else ""
        message = f"interference with {sign.place()}: {why}, {by}at {lsn}; all before that is captured"
        return DefiniteError(
            message,
            "Find out who writes there, and stop that. Then stop `penstock run`, and let the source go on behind it:"
            f" ALTER SOURCES {self._source} ACCEPT INTERFERENCE;",
        )
