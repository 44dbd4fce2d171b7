"""Hearing: which signs one scan of the stream met, whose transactions they are of, and whether they are all right.

::

    scan ─TOLD─▶ hear ─▶ Heard ┬─ its transaction commits in this scan ─▶ disturbed
                               ├─ it is in no transaction ──────────────▶ disturbed
                               └─ it comes in parts ─▶ kept with the open transaction ─▶ judge, at its commit

Nothing is judged before its commit: what is rolled back never counts. In a block, a change has the xid of its
subtransaction, but a message that of the whole transaction: whether it was rolled back with a part of that can then not
be told, and capture has to ask for the transaction as a whole. A transaction that is prepared is the
exception, and is judged then. We never prepare one; and should capture start anew before its commit, its signs are
not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import DefiniteError, ProtocolError
from penstock.positions import Lsn
from penstock.sources.postgres.control import REPORT
from penstock.sources.postgres.interference import Guard
from penstock.sources.postgres.relation import Relation
from penstock.sources.postgres.scan import WATCHED
from penstock.sources.postgres.signs import Sign, read_change, read_message

__all__ = ["Heard", "Hearing"]


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
