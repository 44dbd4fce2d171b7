"""The columns of a sink: which columns of a table its messages have, under which names, and with which values.

::

    row of the log ─▶ include, exclude ─▶ redact ─▶ format ─▶ rename ─▶ row of the sink
    _unchanged: indexes of columns of the log ─▶ indexes of columns of the sink

All options refer to the names of the columns upstream. In a sink of several tables, ``card`` is the column of every
table that has it; ``orders.card`` (the local name of a table) and ``public.orders.card`` are the column of one. The
more specific name decides: of ``redact = (card = 'hash', orders.card = 'null')``, the second applies to ``orders``. A
name without a table in `include` restricts all tables, ``orders.id`` restricts ``orders`` alone.

**Schema changes.** A table may gain columns. A new column is part of the sink, unless `include` lists the columns; its
redaction applies from its first row, if there is one under its name. Construct `SinkColumns` for each version of the
schema.

**Keys.** Rows with different keys must have different keys in the sink, or a compacted topic would lose rows. So the
key columns cannot be left out, and neither redacted nor formatted in a way that makes values equal: `hash` is possible.

**Old images** and keys are processed like new rows. A column that is null because it is not part of an image, or was
omitted by Postgres, stays null and stays marked in ``_unchanged``.

**Rescued values.** `RESCUED` contains no text of a column that is excluded or redacted, and has the names of the sink.

Messages of errors have names of columns, never values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.rescued_texts import renamed, without_columns
from penstock.errors import UsageError
from penstock.formats.binary_encoder import list_items, list_offsets
from penstock.model import TableName, TableSchema, rescued_index
from penstock.name_suggestions import nearest
from penstock.sinks.redaction import Redaction, RedactionKind
from penstock.sinks.value_formats import ValueFormats

__all__ = ["ColumnOptions", "SinkColumns", "check_options", "options_of_table"]

_LISTED = 20
"""So many columns are listed in a hint."""


@dataclass(frozen=True)
class ColumnOptions:
    """The options of a sink that concern columns, as the user gave them."""

    include: tuple[str, ...] = ()
    """All columns, if it is empty."""
    exclude: tuple[str, ...] = ()
    """Also removes columns that `include` lists."""
    rename: Mapping[str, str] = field(default_factory=dict)
    redact: Mapping[str, str] = field(default_factory=dict)
    """Column to redaction, see `penstock.sinks.redaction`."""
    formats: ValueFormats = field(default_factory=ValueFormats)

    @property
    def needs_hash_key(self) -> bool:
        """Whether a redaction needs a key."""
        return RedactionKind.HASH.value in self.redact.values()

    def _names(self) -> dict[str, Iterable[str]]:
        """Return the column names in each option."""
        return {
            "include columns": self.include,
            "exclude columns": self.exclude,
            "rename columns": self.rename,
            "redact": self.redact,
        }


@dataclass(frozen=True)
class _Output:
    """One column of the sink."""

    index: int
    """The index of the column in the table."""
    field: pa.Field
    redaction: Redaction | None


class SinkColumns:
    """The columns of one version of one table in a sink."""

    def __init__(
        self, options: ColumnOptions, schema: TableSchema, hash_key: bytes | None, *, local: str | None = None
    ) -> None:
        """Validate the options for this table alone; `check_options` is for all tables of a sink."""
        local = local or schema.table.name
        _check_names(options, {local: schema})
        self._own = options_of_table(options, local, schema)
        self._given, self._hash_key = schema.columns, hash_key
        self._outputs = _outputs(self._own, schema)
        self.columns: pa.Schema = pa.schema([output.field for output in self._outputs])
        """The columns of the sink. Field metadata is kept, unless a column is redacted or has another type."""
        names = {schema.columns.names[output.index]: output.field.name for output in self._outputs}
        self.key: tuple[str, ...] = tuple(names[name] for name in schema.key)
        """The names of the key columns in the sink."""
        self._numbers = np.full(len(schema.columns), -1, np.int32)
        """The index in the sink of each column of the table; -1 if it is excluded."""
        self._numbers[[output.index for output in self._outputs]] = np.arange(len(self._outputs))
        self._names = names
        self._hidden = _hidden(self._outputs, schema)
        """The columns whose texts in `RESCUED` the sink must not contain."""
        if self._own.needs_hash_key and not hash_key:
            message = f"redaction hash of table {local} requires a key"
            raise UsageError(message, "Set option \"redact key\" to a reference: 'env:NAME' or 'file:PATH'.")

    def images(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Return images of the table with the columns of the sink."""
        row = images.column("row")
        if row.type.names != self._given.names:
            message = f"images have other columns than version {self._given.names} of the schema"
            raise ValueError(message)
        values = [self._values(output, row.field(output.index)) for output in self._outputs]
        place = rescued_index(self.columns)
        if place is not None:
            values[place] = renamed(without_columns(values[place], self._hidden), self._names)
        missing = row.is_null() if row.null_count else None
        changed = {
            "row": pa.StructArray.from_arrays(values, fields=list(self.columns), mask=missing),
            "_unchanged": _renumbered(images.column("_unchanged"), self._numbers),
        }
        arrays = [changed.get(name, images.column(name)) for name in images.schema.names]
        fields = [each.with_type(array.type) for each, array in zip(images.schema, arrays, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _values(self, output: _Output, values: pa.Array) -> pa.Array:
        name = self._given.names[output.index]
        if output.redaction is not None:
            return output.redaction.redact(values, name, self._hash_key)
        return self._own.formats.format(values, name)


def check_options(options: ColumnOptions, schemas: Mapping[str, TableSchema]) -> None:
    """Validate the options of a sink of these tables, by local name; the hash key is not needed."""
    _check_names(options, schemas)
    for local, schema in schemas.items():
        _outputs(options_of_table(options, local, schema), schema)


# -- names -------------------------------------------------------------------------------------------------------------


def _spellings(local: str, table: TableName, column: str) -> tuple[str, ...]:
    """Return the names of a column in options, the least specific first."""
    return column, f"{local}.{column}", f"{table}.{column}"


def _check_names(options: ColumnOptions, schemas: Mapping[str, TableSchema]) -> None:
    """Raise an error for a name that no table has."""
    columns = {name for schema in schemas.values() for name in schema.columns.names}
    known = columns | {
        spelling
        for local, schema in schemas.items()
        for name in schema.columns.names
        for spelling in _spellings(local, schema.table, name)
    }
    for option, names in options._names().items():
        for unknown in (name for name in names if name not in known):
            message = f'column "{unknown}" in option "{option}" does not exist'
            among = known - columns if "." in unknown else columns
            listed = ", ".join(sorted(columns)[:_LISTED])
            raise UsageError(message, nearest(unknown, among, '"') or f"The columns are: {listed}.")


def options_of_table(options: ColumnOptions, local: str, schema: TableSchema) -> ColumnOptions:
    """Return the options that apply to a table, with the plain names of its columns."""
    columns = {name: _spellings(local, schema.table, name) for name in schema.columns.names}

    def listed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name, spellings in columns.items() if not set(spellings).isdisjoint(names))

    def mapped(given: Mapping[str, str]) -> dict[str, str]:
        found = {name: [given[each] for each in spellings if each in given] for name, spellings in columns.items()}
        return {name: texts[-1] for name, texts in found.items() if texts}

    include = listed(options.include)
    if not include and any("." not in name for name in options.include):
        message = f'option "include columns" lists no column of table {local}'
        raise UsageError(message, f"Add {local}.{columns and next(iter(columns))}, or remove the table from the sink.")
    return replace(
        options,
        include=include,
        exclude=listed(options.exclude),
        rename=mapped(options.rename),
        redact=mapped(options.redact),
    )


# -- columns -----------------------------------------------------------------------------------------------------------


def _outputs(options: ColumnOptions, schema: TableSchema) -> list[_Output]:
    """Return the columns of the sink; raise an error if they are not possible."""
    options.formats.check()
    redactions = {name: Redaction.parse(text, name) for name, text in options.redact.items()}
    outputs = []
    for index, given in enumerate(schema.columns):
        name, redaction = given.name, redactions.get(given.name)
        if name in options.exclude or (options.include and name not in options.include):
            continue
        changed = _formatted(options.formats, given) if redaction is None else redaction.field(given)
        outputs.append(_Output(index, changed.with_name(options.rename.get(name, name)), redaction))
    _check_outputs(schema, outputs)
    for name in schema.key:
        _check_key_column(options, schema, name, redactions.get(name), outputs)
    return outputs


def _hidden(outputs: list[_Output], schema: TableSchema) -> list[str]:
    """Return the columns that are excluded or redacted."""
    plain = {output.index for output in outputs if output.redaction is None}
    return [name for index, name in enumerate(schema.columns.names) if index not in plain]


def _formatted(formats: ValueFormats, given: pa.Field) -> pa.Field:
    wanted = formats.type_of(given.type)
    return given if wanted == given.type else pa.field(given.name, wanted, given.nullable)


def _check_outputs(schema: TableSchema, outputs: list[_Output]) -> None:
    if not outputs:
        message = f"no column of table {schema.table} is left"
        raise UsageError(message, 'Remove a column from option "exclude columns".')
    for name, count in Counter(output.field.name for output in outputs).items():
        if count > 1:
            message = f'table {schema.table} has {count} columns with the name "{name}" after renaming'
            raise UsageError(message, "Rename the columns to different names.")
        if not name:
            message = f"a column of table {schema.table} is renamed to an empty name"
            raise UsageError(message, 'Give it a name in option "rename columns".')


def _check_key_column(
    options: ColumnOptions, schema: TableSchema, name: str, redaction: Redaction | None, outputs: list[_Output]
) -> None:
    """Raise an error if rows with different keys could have the same key in the sink."""
    about = f'key column "{name}" of table {schema.table}'
    if name not in {schema.columns.names[output.index] for output in outputs}:
        message = f"{about} is excluded"
        raise UsageError(message, "Include the column, or choose other columns as the key of the sink.")
    if redaction is not None:
        if not redaction.keeps_distinct:
            message = f'redaction "{redaction.kind}" makes different values of {about} equal'
            raise UsageError(message, "Use hash, or choose other columns as the key of the sink.")
    elif not options.formats.keeps_distinct(schema.columns.field(name).type):
        message = f"the format of {about} makes different values equal"
        raise UsageError(message, "Use epoch micros or iso8601 for timestamps, and number or string for numerics.")


# -- images ------------------------------------------------------------------------------------------------------------


def _renumbered(unchanged: pa.ListArray, numbers: npt.NDArray[np.int32]) -> pa.ListArray:
    """Return the lists with other numbers, without those that become negative; null if nothing is left of a list."""
    if unchanged.null_count == len(unchanged):
        return unchanged
    found = numbers[list_items(unchanged, unchanged.values).to_numpy()]
    kept = found >= 0
    before = np.concatenate([[0], np.cumsum(kept)])
    offsets = before[list_offsets(unchanged)].astype(np.int32)
    missing = unchanged.is_null().to_numpy(zero_copy_only=False) | (np.diff(offsets) == 0)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(found[kept]), type=unchanged.type, mask=pa.array(missing)
    )
