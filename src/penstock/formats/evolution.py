"""Evolution: may the reader schema grow to what a newer schema has?

Only fields that are added, and only at the end: of the message, or of a struct within it. So every column that is there
keeps its place and type, and rows that were read before stay valid, with null in what is new. A field that the newer
schema no longer has stays a column. One that it has with another type stays as it is, and is an obstacle that is named:
messages with the new type may then be problems.

Types of columns that gain fields at the end of a struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.avro.growth import grown_avro
from penstock.formats.avro.schema import avro_text, parse_avro
from penstock.formats.avro.types import avro_columns, avro_logical_types, is_wrapped
from penstock.formats.format import AvroFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.json.schemas import json_schema_columns
from penstock.formats.protobuf.descriptor import Pool, files_of_text, files_text
from penstock.formats.protobuf.growth import grown_files
from penstock.formats.protobuf.registered import registered_files
from penstock.formats.protobuf.types import protobuf_columns
from penstock.formats.registry import RegisteredSchema
from penstock.formats.resolving import fixed

__all__ = ["Evolution", "added_paths", "evolved", "grown_type"]


@dataclass(frozen=True)
class Evolution:
    """What a newer schema brings: the grown reader schema, the fields it adds, and what could not be followed."""

    resolved: ResolvedFormat
    added: tuple[str, ...]
    obstacles: tuple[str, ...] = ()

    @property
    def grows(self) -> bool:
        """Whether there is anything to adopt."""
        return bool(self.added)


def evolved(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    """Hold a reader schema against a newer schema of the registry."""
    if newer.kind != resolved.format.kind:
        message = f"the newer schema is one of {newer.kind}, and the messages are {resolved.format.kind}"
        raise UsageError(message, "Name a subject with schemas of the same format.")
    match resolved.format:
        case AvroFormat():
            return _avro(resolved, newer)
        case ProtobufFormat():
            return _protobuf(resolved, newer)
        case JsonFormat():
            return _json(resolved, newer)
    raise AssertionError(newer.kind)


def _avro(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    obstacles: list[str] = []
    theirs = parse_avro(newer.text, [text for _, text in newer.references])
    grown = grown_avro(parse_avro(resolved.reader), theirs, obstacles)
    columns = avro_columns(grown)
    wrapped = is_wrapped(grown)
    made = fixed(
        resolved.format,
        columns.field(0).type if wrapped else columns,
        reader=avro_text(grown),
        wrapped=wrapped,
        logical_types=avro_logical_types(grown),
    )
    return _found(resolved, made, obstacles)


def _protobuf(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    obstacles: list[str] = []
    files = grown_files(files_of_text(resolved.reader), registered_files(newer), obstacles)
    pool = Pool(files)
    columns = protobuf_columns(pool, pool.message(resolved.message))
    made = fixed(resolved.format, columns, reader=files_text(files), message=resolved.message)
    return _found(resolved, made, obstacles)


def _json(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    obstacles: list[str] = []
    theirs, raw = json_schema_columns(newer.text, dict(newer.references))
    ours = resolved.physical_type
    theirs = theirs if pa.types.is_struct(theirs) else pa.struct([pa.field("value", theirs)])
    grown = grown_type(ours, theirs, "", obstacles)
    kept = {*resolved.raw, *(path for path in raw if path in added_paths(ours, grown))}
    columns = grown.field(0).type if resolved.wrapped else grown
    return _found(resolved, fixed(resolved.format, columns, raw=sorted(kept), wrapped=resolved.wrapped), obstacles)


def _found(before: ResolvedFormat, after: ResolvedFormat, obstacles: list[str]) -> Evolution:
    added = tuple(added_paths(before.physical_type, after.physical_type))
    return Evolution(after if added else before, added, tuple(obstacles))


def grown_type(ours: pa.DataType, theirs: pa.DataType, path: str, obstacles: list[str]) -> pa.DataType:
    """Return our type with the fields that theirs adds; what differs otherwise is noted as an obstacle."""
    if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
        return _struct(ours, theirs, path, obstacles)
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        return pa.list_(pa.field("element", grown_type(ours.value_type, theirs.value_type, f"{path}[]", obstacles)))
    if pa.types.is_map(ours) and pa.types.is_map(theirs):
        value = grown_type(ours.item_type, theirs.item_type, f"{path}.value", obstacles)
        return pa.map_(ours.key_field, pa.field("value", value))
    if ours != theirs:
        obstacles.append(f'field "{path}": {theirs} in the newer schema, {ours} in the reader\'s')
    return ours


def added_paths(before: pa.DataType, after: pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the fields that a grown type has beyond the earlier one."""
    if pa.types.is_struct(before):
        known = {field.name: field.type for field in before}
        for field in after:
            below = f"{path}.{field.name}" if path else field.name
            if field.name in known:
                yield from added_paths(known[field.name], field.type, below)
            else:
                yield below
    elif pa.types.is_list(before):
        yield from added_paths(before.value_type, after.value_type, f"{path}[]")
    elif pa.types.is_map(before):
        yield from added_paths(before.item_type, after.item_type, f"{path}.value")


def _struct(ours: pa.StructType, theirs: pa.StructType, path: str, obstacles: list[str]) -> pa.StructType:
    others = {field.name: field.type for field in theirs}
    fields = []
    for field in ours:
        below = f"{path}.{field.name}" if path else field.name
        other = others.pop(field.name, field.type)
        fields.append(pa.field(field.name, grown_type(field.type, other, below, obstacles)))
    return pa.struct([*fields, *(pa.field(name, kind) for name, kind in others.items())])
