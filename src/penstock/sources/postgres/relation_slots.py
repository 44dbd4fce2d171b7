"""Which relation of the stream is which table of ours, at the place that is being scanned.

The stream describes a relation before its first change, and bytes that are not consumed are scanned again. So a
description holds from its place on, and for good only when the bytes are done with; one that a transaction in
progress gave holds within that, and for others when it has committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from penstock.model import TableName
from penstock.sources.postgres.shapes import Refused, Shape

__all__ = ["RelationSlots"]


class RelationSlots:
    """Slots of relations: a table's from 0 on, -1 for those that are not wanted, lower ones for those listened to."""

    def __init__(self, ended: Collection[TableName] = ()) -> None:
        """Begin without any relation; tables that have `ended` are not wanted."""
        self.tables: list[Shape | Refused] = []
        """What each slot from 0 on is."""
        self._ended = set(ended)
        self.known: dict[int, int] = {}
        """At the first byte that is not consumed."""
        self._described: list[tuple[int, int, int]] = []
        """Position, relation and slot of what was described behind it."""
        self.mapped: dict[int, int] = {}
        """At the place that is being scanned; `ids` and `slots` are the same, sorted, for the scan."""
        self.ids, self.slots = np.empty(0, np.int64), np.empty(0, np.int32)

    def slot_of(self, table: Shape | Refused | None) -> int:
        """Return the slot of a table."""
        if table is None or table.name in self._ended:
            return -1
        if table not in self.tables:
            self.tables.append(table)
        return self.tables.index(table)

    def has_ended(self, name: TableName) -> bool:
        """Whether a table is no longer wanted."""
        return name in self._ended

    def end(self, name: TableName, others: Iterable[dict[int, int]]) -> None:
        """Want no more of a table, here and in what transactions in progress described."""
        self._ended.add(name)
        for relations in (self.known, *others):
            relations.update({relation: self._wanted(slot) for relation, slot in relations.items()})

    def _wanted(self, slot: int) -> int:
        return -1 if slot >= 0 and self.tables[slot].name in self._ended else slot

    def rescan(self) -> None:
        """Forget what was described behind the first byte that is not consumed: it is met again."""
        self._described.clear()

    def describe(self, at: int, relation: int, slot: int) -> None:
        """Take note of a description."""
        self._described.append((at, relation, slot))

    def described(self) -> dict[TableName, Shape]:
        """Return the tables that this scan described, each as it did last."""
        tables = (self.tables[slot] for _, _, slot in self._described if slot >= 0)
        return {table.name: table for table in tables if isinstance(table, Shape)}

    def told(self, upto: int) -> dict[int, int]:
        """Return what was described before a place."""
        return {relation: self._wanted(slot) for at, relation, slot in self._described if at < upto}

    def lay_out(self, within: Mapping[int, int]) -> None:
        """Lay out for the scan which relation is which: as told so far, and `within` the open transaction."""
        self.mapped = {**self.known, **within, **{relation: slot for _, relation, slot in self._described}}
        known = sorted(self.mapped.items())
        self.ids = np.array([relation for relation, _ in known], np.int64)
        self.slots = np.array([slot for _, slot in known], np.int32)
