"""Growth of a topic's table: fields that values gain become columns, from one tick on.

::

    values gain fields ─▶ a wider reader schema ─▶ the columns that it adds, with the value that earlier rows have there
                                                       └─▶ TopicTable with more columns, or None: not an addition

Only fields of a row are added, after all other columns. Everything else keeps its meaning: a field within a column, one
whose name is taken, or one of the key is not added. If an existing column would have another type, nothing is added.

**Earlier rows** have the value that a message without the field has: the default of an Avro field, zero or the empty
value of a Protobuf field without presence, otherwise null. So a row is the same, whether its message was decoded before
the field was known or afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock import formats
from penstock.errors import PenstockError
from penstock.formats import (
    AvroFormat,
    JsonFormat,
    ProtobufFormat,
    RegisteredSchema,
    ResolvedFormat,
    SubjectVersion,
)
from penstock.formats.format import Extra
from penstock.model import is_reserved, with_missing
from penstock.sources.kafka.topic_table import TopicTable

__all__ = ["can_grow", "grown_by_schema", "grown_table", "is_inferred", "may_add"]


def is_inferred(resolved: ResolvedFormat) -> bool:
    """Return whether the columns were inferred from messages, and messages with other fields are accepted."""
    given = resolved.format
    if not isinstance(given, JsonFormat) or given.registry is not None or given.columns is not None:
        return False
    return given.extra is Extra.IGNORE and not resolved.wrapped


def may_add(table: TopicTable) -> Callable[[str], bool]:
    """Return whether a field of a row can become a column: its name is not taken, in any case."""
    taken = {name.lower() for name in table.table_schema().columns.names}
    return lambda name: bool(name) and not {".", "["} & {*name} and name.lower() not in taken and not is_reserved(name)


def can_grow(table: TopicTable) -> Callable[[str], bool]:
    """Return whether the field at a path of the values can become a column."""
    prefixes = [".".join((*place, "")) for place in table.places()]
    is_new = may_add(table)
    return lambda path: any(path.startswith(prefix) and is_new(path[len(prefix) :]) for prefix in prefixes)


def grown_by_schema(table: TopicTable, newer: RegisteredSchema, version: SubjectVersion) -> TopicTable | None:
    """Return the table with the columns that a newer schema of the registry adds; None if it adds none."""
    try:
        found = formats.evolve(table.value_format, newer, can_grow(table))
        return grown_table(table, found.resolved, version) if found.has_new_fields else None
    except PenstockError:  # `penstock check` reports it, and messages that cannot be decoded are rejected
        return None


def grown_table(table: TopicTable, wider: ResolvedFormat, version: SubjectVersion | None = None) -> TopicTable | None:
    """Return the table with the columns that a wider reader schema adds; None if it does more, or less, than that."""
    before = table.table_schema()
    same = TopicTable.create(
        table.name, table.alias, table.topic, table.key_format, wider, table.envelope, table.include
    ).table_schema()
    known = before.columns.names
    types = {field.name: field.type for field in same.columns}
    kept = all(types.get(field.name) == field.type for field in before.columns)
    added = [field for field in same.columns if field.name not in known]
    if not kept or not added or same.key != before.key or not _is_symmetric(table, wider):
        return None
    return table.with_columns(wider, [_with_missing(field, table, wider) for field in added], version)


def _is_symmetric(table: TopicTable, wider: ResolvedFormat) -> bool:
    """Return whether the rows before and after a change have the same columns, where both are needed."""
    if not table.remembers():
        return True
    kinds = [_type_at(wider.physical_type, place) for place in table.places()]
    return len({tuple(field.name for field in kind) for kind in kinds if kind is not None}) == 1


def _type_at(kind: pa.DataType, place: Sequence[str]) -> pa.StructType | None:
    for name in place:
        index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if index < 0:
            return None
        kind = kind.field(index).type
    return kind if pa.types.is_struct(kind) else None


# -- the value in earlier rows -----------------------------------------------------------------------------------------


def _with_missing(field: pa.Field, table: TopicTable, wider: ResolvedFormat) -> pa.Field:
    """Return the field of an added column with the value that a message without it decodes to."""
    place = table.places()[-1]
    match wider.format:
        case AvroFormat():
            value = _avro_default(wider, place, field.name)
        case ProtobufFormat():
            value = _protobuf_default(wider, place, field.name)
        case _:
            return field
    return field if value is None or not value[0].is_valid else with_missing(field, value.cast(field.type))


def _avro_default(wider: ResolvedFormat, place: Sequence[str], name: str) -> pa.Array | None:
    """Decode the default of a field, from a message of a schema that has only this field."""
    from penstock.formats.avro.plan import encoded_default
    from penstock.formats.avro.schema import AvroType, avro_text, parse_avro
    from penstock.formats.avro.types import members

    row = parse_avro(wider.reader)
    for step in place:
        row = members(next(one.type for one in row.fields if one.name == step))[0]
    found = next((one for one in row.fields if one.name == name), None)
    if found is None or not found.has_default:
        return None
    alone = avro_text(AvroType("record", name="penstock.Row", fields=[found]))
    message = encoded_default(found.default, found.type, name)
    rows, _ = formats.decode_batch(pa.array([message]), formats.resolve(AvroFormat(reader_schema=alone)))
    return pc.struct_field(rows, name)


def _protobuf_default(wider: ResolvedFormat, place: Sequence[str], name: str) -> pa.Array | None:
    """Decode an empty message that has only this field."""
    from penstock.formats.protobuf.descriptor import Pool, ProtoFile, ProtoMessage, dump_files, load_files
    from penstock.formats.protobuf.types import protobuf_columns, type_of
    from penstock.formats.resolution import build_resolved_format

    files = load_files(wider.reader)
    pool = Pool(files)
    row = pool.message(wider.message)
    for step in place:
        row = pool.message(type_of(pool, next(one for one in row.fields if one.name == step), row.name))
    found = next((one for one in row.fields if one.name == name), None)
    if found is None:
        return None
    own = found if not found.type_name else replace(found, type_name=f".{type_of(pool, found, row.name)}")
    alone = ProtoMessage("penstock.Row", [own])
    files = [*files, ProtoFile("penstock", [alone])]
    given = ProtobufFormat(descriptor_set="", message=alone.name)
    plain = build_resolved_format(
        given, protobuf_columns(Pool(files), alone), reader=dump_files(files), message=alone.name
    )
    rows, problems = formats.decode_batch(pa.array([b""]), plain)
    return None if problems[0].is_valid else pc.struct_field(rows, name)
