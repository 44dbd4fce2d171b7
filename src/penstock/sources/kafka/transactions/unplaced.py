"""Changes that do not tell what committed before them: those of the first transaction after a snapshot.

Debezium does not know of a commit then (``"sequence":"[null,…]"``). Where such a transaction stands is told by its END.
So messages of a partition are held back, from such a change on, until the END was read, which is a moment.

A run that was killed within that transaction leaves no END; the next run begins with a snapshot again. That there is
none is known when a copied row follows in the partition, or an END that comes later than the transaction. Then it
stands where the partition was before it: it goes with what is complete there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from penstock.sources.kafka.transactions.marks import UNKNOWN, Ints, MarkKind, Marks, joined

__all__ = ["Unplaced"]


class Unplaced:
    """What is held back of one partition."""

    def __init__(self) -> None:
        self._held: Marks | None = None
        self._read = 0

    def __len__(self) -> int:
        return 0 if self._held is None else len(self._held.offsets)

    def take(self, marks: Marks, read: int) -> None:
        """Add messages that follow; the partition was read up to an offset."""
        self._held = marks if self._held is None else joined(self._held, marks)
        self._read = max(self._read, read)

    def give(self, end_of: Callable[[int], int | None], highest: int, floor: int) -> tuple[Marks, int]:
        """Return the messages whose place is known by now, and up to where the partition is read with them.

        `end_of` returns the END of a transaction, where it is known; `highest` is the highest one that was read;
        `floor` is where the partition is before these messages.
        """
        assert self._held is not None
        marks = self._placed(self._held, end_of, highest, floor)
        unknown = marks.before == UNKNOWN
        count = int(np.argmax(unknown)) if unknown.any() else len(unknown)
        numbers = np.arange(len(unknown))
        self._held = marks.chosen(numbers >= count) if count < len(unknown) else None
        read = self._read if self._held is None else int(self._held.offsets[0])
        return marks.chosen(numbers < count), read

    def _placed(self, marks: Marks, end_of: Callable[[int], int | None], highest: int, floor: int) -> Marks:
        before: Ints = marks.before.copy()
        for which in np.unique(marks.which[before == UNKNOWN]):
            mine = (before == UNKNOWN) & (marks.which == which)
            end = end_of(int(which))
            if end is not None:
                before[mine] = end - 1
            elif _has_no_end(marks, int(np.flatnonzero(mine)[-1]), highest):
                before[mine] = max(floor, 0, int(before[: np.argmax(mine)].max(initial=0)))
        return replace(marks, before=before)


def _has_no_end(marks: Marks, number: int, highest: int) -> bool:
    """Say whether what follows a change shows that the END of its transaction was never written."""
    kinds, before = marks.kinds[number + 1 :], marks.before[number + 1 :]
    later = (kinds == MarkKind.CHANGE) & (before >= 0) & (before <= highest)
    return bool(np.any(kinds == MarkKind.COPIED) or np.any(later))
