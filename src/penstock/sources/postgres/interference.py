"""Interference: does anybody else write where only we mark windows and beat? Pure: signs in, a verdict out.

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

from collections.abc import Collection

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.heartbeat import Beat
from penstock.sources.postgres.signs import Sign, Subject
from penstock.sources.postgres.tokens import MalformedToken
from penstock.sources.postgres.watermark import Mark, Watermark

__all__ = ["Guard"]

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
        except MalformedToken:
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
