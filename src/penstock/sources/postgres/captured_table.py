"""A captured table: its definition upstream, and so what the stream and the copy must deliver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from penstock.fields import with_fields
from penstock.model import (
    TableSchema,
    is_rescuable,
    is_rescued,
    rescued_field,
    with_base_type_name,
    with_enum_labels,
    with_missing,
    with_not_null,
    with_type_name,
)
from penstock.sources.postgres.types import ColumnCodec, PostgresType, is_map
from penstock.sources.produced_table import ProducedTable

__all__ = ["DECLARATION", "CapturedColumn", "CapturedTable", "Declaration"]

DECLARATION = """jsonb_build_object(
    'type_name', format_type(a.atttypid, a.atttypmod),
    'base_type_name', CASE WHEN (SELECT typtype FROM pg_type WHERE oid = a.atttypid) = 'd' THEN (
        WITH RECURSIVE base (oid, typmod) AS (
            SELECT a.atttypid, a.atttypmod
          UNION ALL
            SELECT t.typbasetype, t.typtypmod FROM base JOIN pg_type t USING (oid) WHERE t.typtype = 'd'
        )
        SELECT format_type(base.oid, base.typmod) FROM base JOIN pg_type t USING (oid) WHERE t.typtype <> 'd') END,
    'enum_labels', (
        SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e
         WHERE e.enumtypid IN (SELECT unnest(ARRAY[t.oid, t.typelem]) FROM pg_type t WHERE t.oid = a.atttypid)),
    'not_null', a.attnotnull)"""
"""SQL of the `Declaration` of the column ``a`` of ``pg_attribute``."""


@dataclass(frozen=True)
class Declaration:
    """How a column was declared when it was described. No value depends on it; it is for readers of the schema."""

    type_name: str
    """As ``format_type`` prints it."""
    base_type_name: str | None = None
    """For a domain, the type below it."""
    enum_labels: tuple[str, ...] | None = None
    """For an enum or an array of one."""
    not_null: bool = False

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Return the declaration that the query `DECLARATION` found."""
        labels = found["enum_labels"]
        return cls(**{**found, "enum_labels": None if labels is None else tuple(labels)})

    def on(self, field: pa.Field) -> pa.Field:
        """Return the field with this declaration as its metadata."""
        field = with_type_name(field, self.type_name)
        if self.base_type_name is not None:
            field = with_base_type_name(field, self.base_type_name)
        if self.enum_labels is not None:
            field = with_enum_labels(field, self.enum_labels)
        return with_not_null(field) if self.not_null else field


_TEXT, _VARCHAR = 25, 1043


@dataclass(frozen=True)
class CapturedColumn:
    """A captured column. It keeps its name downstream when it is renamed upstream."""

    name: str
    """Downstream: its name when its capture began."""
    type: PostgresType
    identity: bool = False
    """Whether it is part of the replica identity."""
    as_text: bool = False
    """Whether it is stored as the text that Postgres prints: its type has no exact Arrow form, or `text columns`."""
    comment: str | None = None
    added: bool = False
    """Whether it was added after capture began."""
    missing: str | None = None
    """For an added column, the value of rows older than the column, as the text that Postgres prints; None is null."""
    declaration: Declaration | None = None
    """None if an earlier version of Penstock described the column."""
    number: int = 0
    """``pg_attribute.attnum``: the number of a column never changes, and no other column of the table ever gets it. 0
    if an earlier version of Penstock described the column."""
    renamed: str | None = None
    """Its name upstream, if that is another one by now."""

    @property
    def upstream(self) -> str:
        """Its name upstream."""
        return self.renamed or self.name

    def is_widened(self, oid: int, typmod: int) -> bool:
        """Return whether this type, of the same column, has all values that its type had, in the same representation.

        That is a longer varchar, one without a limit, or text. Postgres does not rewrite the table for such a change,
        unless it computes new values (USING).
        """
        if self.type.oid != _VARCHAR or self.type.typmod == -1:
            return (self.type.oid, oid) == (_VARCHAR, _TEXT)
        return oid == _TEXT or (oid == _VARCHAR and (typmod == -1 or typmod > self.type.typmod))

    def codec(self) -> ColumnCodec:
        """Return the codec of its values; raises `UnsupportedTypeError` if no Arrow type holds them exactly."""
        from penstock.sources.postgres.types import codec_for, text_codec_for

        return text_codec_for(self.type) if self.as_text else codec_for(self.type)

    @property
    def is_map(self) -> bool:
        """Whether its values become maps."""
        return not self.as_text and is_map(self.type)

    @property
    def sent_as_text(self) -> bool:
        """Whether Postgres has to print its values: they are stored as text, and only the server can print them.

        The copy prints such a column; a stream that includes one has to request text (``binary 'false'``).
        """
        return self.codec().wants_text

    def field(self) -> pa.Field:
        """Return the column downstream. An added column carries its description, which the next start reads."""
        field = pa.field(self.name, self.codec().arrow, metadata={"comment": self.comment} if self.comment else None)
        if self.declaration is not None:
            field = self.declaration.on(field)
        if not self.added:
            return field
        description = _COLUMN.dump_json(replace(self, renamed=None))
        field = field.with_metadata({**(field.metadata or {}), _DESCRIPTION: description})
        return field if self.missing is None else with_missing(field, self._missing_value(self.missing))

    def _missing_value(self, text: str) -> pa.Array:
        wire = np.frombuffer(text.encode(), np.uint8)
        return self.codec().text(wire, np.zeros(1, np.int32), np.array([len(wire)], np.int32))


def _is_same(known: CapturedColumn, found: CapturedColumn) -> bool:
    """Return whether a column has the type that it had, or a wider one, and the same form.

    The option `text columns` names a column; one that was renamed since keeps its form.
    """
    same_type = known.type == found.type or known.is_widened(found.type.oid, found.type.typmod)
    return same_type and (known.as_text == found.as_text or known.renamed is not None)


_CHANGED = "its columns changed upstream"
_COLUMN = TypeAdapter(CapturedColumn)
_DESCRIPTION = b"postgres"


class CapturedTable(ProducedTable):
    """A table as of the start of its capture. Stored in the catalog, sent to Spark workers."""

    oid: int
    key: tuple[str, ...]
    published: int = 0
    """For a table added after the source was created: a position from which on its changes are sent."""
    replica_identity: str = "d"
    """As in ``pg_class``: d(efault), f(ull), i(ndex), n(othing)."""
    filenode: int | None = None
    """A different one means that the table was rewritten since."""
    width: int = 0
    """The number of columns it ever had, as far as known: a greater number means that columns were added."""
    columns: tuple[CapturedColumn, ...]
    partitioned: bool = False
    """Whether it is captured as the root of its partitions: the copy reads all of them."""
    leaves: tuple[int, ...] = ()
    """For such a table, the OIDs of its partitions when it was captured."""
    row_filter: str | None = None
    """The publication's row filter as SQL that Postgres printed: the copy applies it too."""
    column_list: bool = False
    """Whether the publication lists its columns, so that the others never leave Postgres."""
    ignored: tuple[str, ...] = ()
    """Columns that the stream sends and capture ignores (Postgres 14, publications of others)."""
    absent: tuple[str, ...] = ()
    """Columns that were dropped upstream since: they are null in rows that are read or changed from then on."""
    rescue: bool = False
    """Whether values that the type of their column cannot hold are kept as text (the option `on unrepresentable`)."""

    @property
    def rescued_index(self) -> int | None:
        """The index of the column with these texts: after the columns that the table had when its capture began."""
        return sum(not column.added for column in self.columns) if self.rescue else None

    def table_schema(self) -> TableSchema:
        """Return the schema downstream."""
        fields = [self._field(column) for column in self.columns]
        if self.rescued_index is not None:
            fields.insert(self.rescued_index, rescued_field())
        return TableSchema(self.name, pa.schema(fields), self.key)

    def _field(self, column: CapturedColumn) -> pa.Field:
        """Return a column downstream; one with rescued values has nulls, also if it is declared NOT NULL."""
        if column.declaration is not None and self.can_rescue(column) and is_rescuable(column.codec().arrow):
            column = replace(column, declaration=replace(column.declaration, not_null=False))
        return column.field()

    def can_rescue(self, column: CapturedColumn) -> bool:
        """Return whether values of a column may be kept as text. A key identifies its row, and is needed as it is."""
        return self.rescue and column.name not in self.key

    def can_lose(self, name: str) -> bool:
        """Return whether the table can continue without a column.

        Old rows of a keyless table identify rows by all columns, so a row that still has a value could not be found. A
        publication with a column list depends on its columns. Texts of values would remain in the column of texts.
        """
        return bool(self.key) and name not in self.key and not (self.ignored or self.column_list or self.rescue)

    @property
    def can_rename(self) -> bool:
        """Whether the table can continue with renamed columns.

        A publication with a column list, and columns that capture ignores, are compared by the names of columns.
        """
        return not self.ignored and not self.column_list

    @property
    def present(self) -> tuple[CapturedColumn, ...]:
        """The columns that still exist upstream."""
        return tuple(column for column in self.columns if column.name not in self.absent)

    @property
    def upstream_key(self) -> tuple[str, ...]:
        """The names of its key columns upstream."""
        names = {column.name: column.upstream for column in self.columns}
        return tuple(names[name] for name in self.key)

    def with_names(self, names: Mapping[int, str]) -> Self:
        """Return this table with the current names of its columns, by their numbers."""
        found = [names.get(column.number, column.upstream) for column in self.columns]
        if found == [column.upstream for column in self.columns]:
            return self
        columns = (
            replace(column, renamed=None if name == column.name else name)
            for column, name in zip(self.columns, found, strict=True)
        )
        return with_fields(self, columns=tuple(columns))

    def absent_columns(self) -> tuple[str, ...]:
        """Return the columns that were dropped upstream."""
        return self.absent

    def comments(self) -> dict[str, str]:
        """Return the comments of its columns."""
        return {column.name: column.comment for column in self.columns if column.comment}

    def with_found_columns(self, found: Self | None) -> Self | str:
        """Return this table with the columns renamed, added and dropped since, as `found`; or why it cannot be read."""
        if found is None or found.oid != self.oid:
            return "it was dropped upstream, or is no longer published"
        known = self._numbered(found)
        if known is None:
            return _CHANGED
        now = {column.number: column for column in found.columns}
        numbers = {column.number for column in known.columns}
        gone = tuple(column.name for column in known.columns if column.number not in now)
        table = with_fields(known, absent=gone).with_names({number: column.name for number, column in now.items()})
        is_renamed = any(column.renamed for column in table.columns)
        pairs = [(column, now[column.number]) for column in table.present]
        added = [column for column in found.columns if column.number not in numbers]
        if not all(map(self.can_lose, gone)) or (is_renamed and not self.can_rename):
            return _CHANGED
        if not all(_is_same(column, other) for column, other in pairs):
            return _CHANGED
        taken = {name.lower() for name in table.names}
        if any(column.number <= self.width or column.name.lower() in taken for column in added):
            return _CHANGED  # a column that was not captured was renamed; or one has the name that another one had
        if found.key != table.upstream_key:
            return "its key changed upstream"
        return table.with_added([replace(column, added=True) for column in added])

    def _numbered(self, found: Self) -> Self | None:
        """Return this table with the numbers of its columns, if an earlier version of Penstock did not store them."""
        if all(column.number for column in self.columns):
            return self
        numbers = {column.name: column.number for column in found.columns}
        if not {column.name for column in self.columns} <= numbers.keys():
            return None
        return with_fields(self, columns=tuple(replace(c, number=numbers[c.name]) for c in self.columns))

    @property
    def names(self) -> frozenset[str]:
        """The names of its columns downstream."""
        return frozenset(column.name for column in self.columns)

    def with_logged_columns(self, schema: TableSchema) -> Self:
        """Return this table with the columns added since, according to its schema in the log."""
        upstream = [field for field in schema.columns if not is_rescued(field)]
        added = [_COLUMN.validate_json(f.metadata[_DESCRIPTION]) for f in upstream[len(self.columns) :]]
        return self.with_added(added) if added else self

    def with_added(self, added: Sequence[CapturedColumn]) -> Self:
        """Return this table with columns added at its end."""
        update = {"columns": (*self.columns, *added), "width": self.width + len(added)}
        return with_fields(self, **update)
