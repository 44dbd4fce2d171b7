"""Which columns the changes of a table have, by what the stream said of it.

::

    Relation message ── Shapes.of ──▶ Shape      the columns of a captured table: as captured, or with some added since
                                  └─▶ Refused    the table cannot go on like this, and why
                                  └─▶ None       not a table of ours
                                  └─▶ Undescribed raised: columns were added; the caller looks them up, and `learn`s

The stream describes a table before its first change, and again after DDL. A table may gain columns at its end. All
else (columns dropped, renamed or of another type, another key, another table of that name) ends it: an image
with other columns could not stand beside the earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from penstock.model import TableName, TableSchema
from penstock.sources.postgres.captured import CapturedColumn, CapturedTable
from penstock.sources.postgres.relation import Relation, RelationColumn
from penstock.sources.postgres.types import ColumnCodec

__all__ = ["Refused", "Shape", "Shapes", "Undescribed"]

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
            table = shape.table.model_copy(update={"filenode": filenode})
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
