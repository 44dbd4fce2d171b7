"""Relation messages of pgoutput: how the stream describes a table before its first change, and after each DDL.

Which columns the changes of a table have, by what the stream said of it.

::

    Relation message ── Shapes.of ──▶ Shape      the columns of a captured table: as captured, or with some added since
                                  └─▶ Refused    the table cannot go on like this, and why
                                  └─▶ None       not a table of ours
                                  └─▶ Undescribed raised: columns were added; the caller looks them up, and `learn`s

The stream describes a table before its first change, and again after DDL. A table may gain columns at its end. All
else (columns dropped, renamed or of another type, another key, another table of that name) ends it: an image
with other columns could not stand beside the earlier ones.

Which relation of the stream is which table of ours, at the place that is being scanned.

The stream describes a relation before its first change, and bytes that are not consumed are scanned again. So a
description holds from its place on, and for good only when the bytes are done with; one that a transaction in
progress gave holds within that, and for others when it has committed.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from penstock.errors import ProtocolError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.sources.postgres.captured import CapturedColumn, CapturedTable
from penstock.sources.postgres.control import REPORT
from penstock.sources.postgres.types import ColumnCodec

__all__ = ["Refused", "Relation", "RelationColumn", "RelationSlots", "Shape", "Shapes", "Undescribed", "parse_relation"]


@dataclass(frozen=True)
class RelationColumn:
    """A column as Postgres declares it: type OID and modifier, and whether it is part of the replica identity."""

    name: str
    oid: int
    typmod: int
    identity: bool = False


@dataclass(frozen=True)
class Relation:
    """A table as the stream describes it."""

    id: int
    table: TableName
    replica_identity: str
    columns: tuple[RelationColumn, ...]


def parse_relation(message: bytes) -> Relation:
    """Read a Relation message, from its kind byte on; anything malformed raises `ProtocolError`."""
    try:
        return _parse(message)
    except (struct.error, ValueError, IndexError) as error:
        said = "a malformed Relation message arrived from Postgres"
        raise ProtocolError(said, REPORT) from error


def _parse(message: bytes) -> Relation:
    if message[0:1] != b"R":
        raise ValueError(message[0:1])
    (relation,) = struct.unpack_from(">I", message, 1)
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    identity, count = struct.unpack_from(">cH", message, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = _text(message, at + 1)
        oid, typmod = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(RelationColumn(column, oid, typmod, bool(flags & 1)))
    if at != len(message):
        raise ValueError(at)
    return Relation(relation, TableName(schema or "pg_catalog", name), identity.decode("ascii"), tuple(columns))


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


_Declared = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Shape:
    """The columns of a captured table at some time, and their version in the change log."""

    table: CapturedTable
    schema: TableSchema
    version: int
    sent: tuple[str, ...] = ()
    """All columns that the stream sends, where that is more than are captured."""

    @classmethod
    def of(cls, table: CapturedTable, version: int) -> Self:
        """Take over a captured table."""
        return cls(table, table.table_schema(), version)

    @property
    def name(self) -> TableName:
        """The upstream table."""
        return self.table.name

    @property
    def places(self) -> list[int]:
        """Where in a tuple each captured column stands."""
        names = [column.name for column in self.table.columns]
        return [self.sent.index(name) for name in names] if self.sent else list(range(len(names)))

    @property
    def width(self) -> int:
        """How many columns a tuple has."""
        return len(self.sent) or len(self.table.columns)

    @cached_property
    def codecs(self) -> tuple[ColumnCodec, ...]:
        """How each column becomes Arrow."""
        return tuple(column.codec() for column in self.table.columns)


@dataclass(frozen=True)
class Refused:
    """A table whose changes cannot be followed from here on."""

    name: TableName
    why: str


class Undescribed(Exception):
    """Columns were added to a captured table: somebody has to say what they are (`Shapes.learn`)."""

    def __init__(self, shape: Shape, relation: Relation) -> None:
        super().__init__(shape, relation)
        self.shape, self.relation = shape, relation
        self.xid: int | None = None
        """Of the transaction; None where it has not committed: then nobody else can see the columns yet."""


@dataclass
class Shapes:
    """The shapes of all captured tables."""

    current: dict[TableName, Shape]
    """The columns that each captured table has as of the last transaction that committed."""
    _learned: dict[tuple[TableName, _Declared], Shape | Refused] = field(default_factory=dict)

    def of(self, relation: Relation, told: Mapping[TableName, Shape]) -> Shape | Refused | None:
        """Return what the changes of a relation look like; `told` are shapes that came up after the current ones."""
        shapes = (told.get(name, shape) for name, shape in self.current.items())
        own = next((shape for shape in shapes if _is_it(shape.table, relation)), None)
        if own is None:
            return None
        shape = self._with_columns(own, relation)
        why = _identity_refused(own, relation)
        return Refused(own.name, why) if why and isinstance(shape, Shape) else shape

    def learn(self, relation: Relation, shape: Shape | Refused) -> None:
        """Remember what these columns are."""
        self._learned[shape.name, _declared(relation.columns)] = shape

    def advance(self, shape: Shape) -> None:
        """Take note that a transaction with changes of this shape has committed."""
        if len(shape.schema.columns) > len(self.current[shape.name].schema.columns):
            self.current[shape.name] = shape

    def found_in(self, files: Mapping[TableName, int]) -> None:
        """Take note of the files that hold tables now."""
        for name, filenode in files.items():
            shape = self.current[name]
            table = with_fields(shape.table, filenode=filenode)
            self.current[name] = replace(shape, table=table)

    def _with_columns(self, own: Shape, relation: Relation) -> Shape | Refused:
        if relation.id != own.table.oid:
            return Refused(own.name, "it was dropped and created again upstream")
        if relation.table != own.name:
            return Refused(own.name, f"it was renamed to {relation.table} upstream")
        known = tuple((c.name, c.type.oid, c.type.typmod) for c in own.table.columns)
        wanted = tuple(column for column in relation.columns if column.name not in own.table.ignored)
        declared = _declared(wanted)
        if declared[: len(known)] != known:
            return Refused(own.name, _drift(own.table.columns, wanted))
        shape = own if declared == known else self._learned.get((own.name, declared))
        if shape is None:
            raise Undescribed(own, replace(relation, columns=wanted))
        if len(wanted) == len(relation.columns) or isinstance(shape, Refused):
            return shape
        return replace(shape, sent=tuple(column.name for column in relation.columns))


def _is_it(table: CapturedTable, relation: Relation) -> bool:
    return relation.id == table.oid or relation.table == table.name


def _declared(columns: Sequence[RelationColumn]) -> _Declared:
    return tuple((c.name, c.oid, c.typmod) for c in columns)


def _identity_refused(shape: Shape, relation: Relation) -> str | None:
    """Say why the old images that this replica identity gives would not do; None where they do."""
    before, now = shape.table.replica_identity, relation.replica_identity
    key = {column.name for column in relation.columns if column.identity}
    if now == "f" or (now == before and now == "n"):
        return None
    if now == "n":
        return "its replica identity is now NOTHING"
    if not shape.schema.key or key != set(shape.schema.key):
        what = "primary key" if now == "d" else "replica identity"
        return f"its {what} changed upstream"
    return None


def _drift(declared: Sequence[CapturedColumn], columns: Sequence[RelationColumn]) -> str:
    """Say in which way a table's columns are no longer what they were."""
    before, now = {c.name: c for c in declared}, {c.name: c for c in columns}
    added, gone = [n for n in now if n not in before], [n for n in before if n not in now]
    changed = [n for n in now if n in before and (now[n].oid, now[n].typmod) != _type(before[n])]
    parts = [("added", added), ("dropped or renamed", gone), ("changed in type", changed)]
    said = ", ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    return f"its columns changed upstream ({said or 'another order'})"


def _type(column: CapturedColumn) -> tuple[int, int]:
    return column.type.oid, column.type.typmod


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
