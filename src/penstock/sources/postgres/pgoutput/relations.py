"""Relation messages of pgoutput: how the stream describes a table before its first change, and again after DDL.

**Shapes** determine the columns of a table's changes from its Relation message:

::

    Relation message ── Shapes.of ┬─▶ Shape           the columns of a captured table, with those added since
                                  ├─▶ RejectedShape   the table can no longer be captured, and why
                                  ├─▶ None            not a captured table
                                  └─▶ UnknownColumnsError is raised: columns were added. The caller looks them up in the
                                      catalog and calls `learn`

A table may gain columns at its end, and lose columns. A dropped column stays, and is null in images from then on, so
that these fit beside the earlier ones. A column may be renamed: it keeps its name downstream. A varchar may become
longer, or text: nothing changes downstream. Any other change (columns of another type, another key, another table of
that name) ends its capture.

**Which column is which.** Postgres lists all columns that exist, in the order of their numbers, and a number is never
used again. Of the known columns, let K be those that the catalog still has, under any name: they existed all the time,
so the description contains them. If it has as many columns as K, it consists of exactly these: the first is the one
with the lowest number, and so on, whatever their names; and all others were dropped. If it has more, further columns
are at its end, as long as the known ones are as they were. Otherwise columns were added while others were renamed or
dropped, and one may be in the place of another. Then the table stops.

**RelationSlots** map the relations of the stream to captured tables, at the position that is being scanned. Bytes that
are not consumed are scanned again. So a description is valid from its position on, and becomes permanent when its bytes
are consumed. A description inside a transaction in progress is valid in that transaction, and for others once it has
committed.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from penstock.errors import ProtocolError, SchemaChangeError, TableError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.pgoutput.control_messages import PROTOCOL_HINT
from penstock.sources.postgres.types import ColumnCodec, PostgresType

__all__ = [
    "RejectedShape",
    "Relation",
    "RelationColumn",
    "RelationSlots",
    "Shape",
    "Shapes",
    "UnknownColumnsError",
    "altered_shape",
    "column_changes",
    "is_altered",
    "parse_relation",
]


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
    """Parse a Relation message, starting at its kind byte; a malformed one raises `ProtocolError`."""
    try:
        return _parse(message)
    except (struct.error, ValueError, IndexError) as error:
        problem = "malformed Relation message received from Postgres"
        raise ProtocolError(problem, PROTOCOL_HINT) from error


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
    """The columns of a captured table at some position, and their version in the change log."""

    table: CapturedTable
    schema: TableSchema
    version: int
    sent: tuple[str, ...] = ()
    """All columns that the stream sends, if it sends more than are captured."""

    @classmethod
    def of(cls, table: CapturedTable, version: int) -> Self:
        """Return the shape of a captured table."""
        return cls(table, table.table_schema(), version)

    @property
    def name(self) -> TableName:
        """The upstream table."""
        return self.table.name

    @property
    def column_indexes(self) -> list[int]:
        """The index of each captured column in a tuple; -1 for one that was dropped upstream."""
        columns = self.table.columns
        if not self.sent:
            return list(range(len(columns)))
        return [-1 if c.name in self.table.absent else self.sent.index(c.upstream) for c in columns]

    @property
    def width(self) -> int:
        """The number of columns of a tuple."""
        return len(self.sent) or len(self.table.columns)

    @cached_property
    def codecs(self) -> tuple[ColumnCodec, ...]:
        """The codec of each column."""
        return tuple(column.codec() for column in self.table.columns)


@dataclass(frozen=True)
class RejectedShape:
    """A table whose changes cannot be captured from here on."""

    name: TableName
    why: str
    kind: type[TableError] = SchemaChangeError


class UnknownColumnsError(Exception):
    """Columns of a captured table were added, dropped, renamed or widened: the caller has to call `Shapes.learn`.

    `relation` has the columns of the table, without those that are not captured.
    """

    def __init__(self, shape: Shape, relation: Relation) -> None:
        super().__init__(shape, relation)
        self.shape, self.relation = shape, relation
        self.xid: int | None = None
        """The transaction; None if it has not committed: then the columns are not visible in the catalog yet."""


@dataclass
class Shapes:
    """The shapes of all captured tables."""

    current: dict[TableName, Shape]
    """The columns of each captured table as of the last committed transaction."""
    _learned: dict[tuple[TableName, _Declared], Shape | RejectedShape] = field(default_factory=dict)

    def of(self, relation: Relation, described: Mapping[TableName, Shape]) -> Shape | RejectedShape | None:
        """Return the shape of a relation's changes; `described` has shapes that are newer than the current ones."""
        shapes = (described.get(name, shape) for name, shape in self.current.items())
        own = next((shape for shape in shapes if _matches(shape.table, relation)), None)
        if own is None:
            return None
        shape = self._with_columns(own, relation)
        why = _identity_problem(shape, relation) if isinstance(shape, Shape) else None
        return RejectedShape(own.name, why) if why else shape

    def learn(self, relation: Relation, shape: Shape | RejectedShape) -> None:
        """Record the shape of these columns."""
        self._learned[shape.name, _declared(relation.columns)] = shape

    def advance(self, shape: Shape) -> None:
        """Record that a transaction with changes of this shape has committed."""
        known = self.current[shape.name]
        before, now = ((len(s.table.columns), len(s.table.absent)) for s in (known, shape))
        if now > before or (now == before and shape.table.columns != known.table.columns):
            self.current[shape.name] = shape

    def update_filenodes(self, files: Mapping[TableName, int]) -> None:
        """Record the current filenodes of tables."""
        for name, filenode in files.items():
            shape = self.current[name]
            table = with_fields(shape.table, filenode=filenode)
            self.current[name] = replace(shape, table=table)

    def _with_columns(self, own: Shape, relation: Relation) -> Shape | RejectedShape:
        if relation.id != own.table.oid:
            return RejectedShape(own.name, "it was dropped and created again upstream", TableError)
        if relation.table != own.name:
            return RejectedShape(own.name, f"it was renamed to {relation.table} upstream", TableError)
        known = tuple((c.upstream, c.type.oid, c.type.typmod) for c in own.table.present)
        wanted = tuple(column for column in relation.columns if column.name not in own.table.ignored)
        declared = _declared(wanted)
        if declared[: len(known)] != known and not _may_be_same(own.table.present, declared):
            return RejectedShape(own.name, _column_changes(own.table.present, wanted))
        again = [name for name, _, _ in declared[len(known) :] if name in own.table.names]
        if again:
            what = "dropped upstream and" if set(again) <= set(own.table.absent) else "renamed upstream and their names"
            return RejectedShape(own.name, f"columns were {what} added again: {', '.join(again)}")
        shape = own if declared == known else self._learned.get((own.name, declared))
        if shape is None:
            raise UnknownColumnsError(own, replace(relation, columns=wanted))
        if isinstance(shape, RejectedShape) or (len(wanted) == len(relation.columns) and not shape.table.absent):
            return shape
        return replace(shape, sent=tuple(column.name for column in relation.columns))


def _matches(table: CapturedTable, relation: Relation) -> bool:
    return relation.id == table.oid or relation.table == table.name


def _declared(columns: Sequence[RelationColumn]) -> _Declared:
    return tuple((c.name, c.oid, c.typmod) for c in columns)


def _may_be_same(known: Sequence[CapturedColumn], declared: _Declared) -> bool:
    """Return whether a description can consist of some of the known columns: in their order, with types that fit."""
    left = iter(known)
    return all(any(_fits(column, oid, typmod) for column in left) for _, oid, typmod in declared)


def _fits(column: CapturedColumn, oid: int, typmod: int) -> bool:
    return (oid, typmod) == _type(column) or column.is_widened(oid, typmod)


def is_altered(shape: Shape, relation: Relation) -> bool:
    """Return whether an `UnknownColumnsError` is about more than added columns."""
    known = tuple((c.upstream, c.type.oid, c.type.typmod) for c in shape.table.present)
    return _declared(relation.columns)[: len(known)] != known


def altered_shape(shape: Shape, relation: Relation, existing: Collection[str]) -> Shape | None:
    """Return the shape after columns were dropped, renamed or widened; None if the table cannot continue so.

    `existing` are the known columns that still exist, under any name. The columns downstream stay the same.
    """
    kept = [column for column in shape.table.present if column.name in existing]
    gone = tuple(column.name for column in shape.table.present if column.name not in existing)
    if len(kept) != len(relation.columns) or not all(map(shape.table.can_lose, gone)):
        return None
    pairs = list(zip(kept, relation.columns, strict=True))
    if not all(_can_become(shape.table, column, declared) for column, declared in pairs):
        return None
    altered = {column.name: _altered(column, declared) for column, declared in pairs}
    columns = tuple(altered.get(column.name, column) for column in shape.table.columns)
    return replace(shape, table=with_fields(shape.table, columns=columns, absent=(*shape.table.absent, *gone)))


def _can_become(table: CapturedTable, column: CapturedColumn, declared: RelationColumn) -> bool:
    can_rename = table.can_rename and column.number > 0
    return _fits(column, declared.oid, declared.typmod) and (can_rename or declared.name == column.upstream)


def _altered(column: CapturedColumn, declared: RelationColumn) -> CapturedColumn:
    renamed = None if declared.name == column.name else declared.name
    if (declared.oid, declared.typmod) == _type(column):
        return replace(column, renamed=renamed)
    return replace(column, renamed=renamed, type=PostgresType(declared.oid, declared.typmod))


def _identity_problem(shape: Shape, relation: Relation) -> str | None:
    """Return why the old images of this replica identity are insufficient; None if they suffice."""
    before, now = shape.table.replica_identity, relation.replica_identity
    key = {column.name for column in relation.columns if column.identity}
    if now == "f" or (now == before and now == "n"):
        return None
    if now == "n":
        return "its replica identity is now NOTHING"
    if not shape.schema.key or key != set(shape.table.upstream_key):
        what = "primary key" if now == "d" else "replica identity"
        return f"its {what} changed upstream"
    return None


def column_changes(shape: Shape, relation: Relation) -> str:
    """Describe how the columns of an `UnknownColumnsError` differ."""
    return _column_changes(shape.table.present, relation.columns)


def _column_changes(declared: Sequence[CapturedColumn], columns: Sequence[RelationColumn]) -> str:
    """Describe how a table's columns changed."""
    before, now = {c.upstream: c for c in declared}, {c.name: c for c in columns}
    added, dropped = [n for n in now if n not in before], [n for n in before if n not in now]
    changed = [n for n in now if n in before and (now[n].oid, now[n].typmod) != _type(before[n])]
    parts = [("added", added), ("dropped or renamed", dropped), ("changed in type", changed)]
    changes = ", ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    return f"its columns changed upstream ({changes or 'another order'})"


def _type(column: CapturedColumn) -> tuple[int, int]:
    return column.type.oid, column.type.typmod


class RelationSlots:
    """Slots of relations: tables from 0 on, -1 for unwanted relations, lower numbers for marker tables."""

    def __init__(self, ended: Collection[TableName] = ()) -> None:
        """Start without relations; tables that have `ended` are unwanted."""
        self.tables: list[Shape | RejectedShape] = []
        """The table of each slot from 0 on."""
        self._ended = set(ended)
        self.consumed_slots: dict[int, int] = {}
        """Slots by relation, at the first byte that is not consumed."""
        self._described: list[tuple[int, int, int]] = []
        """Offset, relation and slot of each description after that byte."""
        self.slot_by_relation: dict[int, int] = {}
        """Slots by relation, at the position being scanned; `ids` and `slots` are the same, sorted, for the scan."""
        self.ids, self.slots = np.empty(0, np.int64), np.empty(0, np.int32)

    def slot_of(self, table: Shape | RejectedShape | None) -> int:
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
        """Stop capturing a table, here and in the descriptions of transactions in progress."""
        self._ended.add(name)
        for relations in (self.consumed_slots, *others):
            relations.update({relation: self._wanted(slot) for relation, slot in relations.items()})

    def _wanted(self, slot: int) -> int:
        return -1 if slot >= 0 and self.tables[slot].name in self._ended else slot

    def rescan(self) -> None:
        """Forget descriptions after the first unconsumed byte: these bytes are scanned again."""
        self._described.clear()

    def describe(self, at: int, relation: int, slot: int) -> None:
        """Record a description."""
        self._described.append((at, relation, slot))

    def described(self) -> dict[TableName, Shape]:
        """Return the tables that this scan described, each with its latest shape."""
        tables = (self.tables[slot] for _, _, slot in self._described if slot >= 0)
        return {table.name: table for table in tables if isinstance(table, Shape)}

    def described_before(self, upto: int) -> dict[int, int]:
        """Return the slots described before an offset."""
        return {relation: self._wanted(slot) for at, relation, slot in self._described if at < upto}

    def build_lookup(self, within: Mapping[int, int]) -> None:
        """Build the scan's lookup of relations, including those described `within` the open transaction."""
        self.slot_by_relation = {
            **self.consumed_slots,
            **within,
            **{relation: slot for _, relation, slot in self._described},
        }
        lookup = sorted(self.slot_by_relation.items())
        self.ids = np.array([relation for relation, _ in lookup], np.int64)
        self.slots = np.array([slot for _, slot in lookup], np.int32)
