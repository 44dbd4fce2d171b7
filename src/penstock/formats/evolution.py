"""Schema evolution: merge the new fields of a newer schema into the reader schema.

Fields can only be added, and only at the end: of the message, or of a struct within it. So every existing column keeps
its position and type, and rows decoded earlier stay valid, with null in new columns. A field that the newer schema
removed remains a column. A field whose type changed keeps its old type and is reported as a conflict: messages with the
new type may be rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.avro.evolution import merge_avro_schema
from penstock.formats.avro.schema import avro_text, parse_avro
from penstock.formats.avro.types import avro_columns, avro_logical_types, is_wrapped
from penstock.formats.format import AvroFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.json.schemas import json_schema_columns
from penstock.formats.protobuf.descriptor import Pool, dump_files, load_files
from penstock.formats.protobuf.evolution import merge_proto_files
from penstock.formats.protobuf.registry_files import registered_files
from penstock.formats.protobuf.types import protobuf_columns
from penstock.formats.resolution import build_resolved_format
from penstock.formats.schema_registry import RegisteredSchema

__all__ = ["Evolution", "added_paths", "evolve", "merge_type"]


@dataclass(frozen=True)
class Evolution:
    """The result of a merge: the merged reader schema, the fields added, and the conflicts."""

    resolved: ResolvedFormat
    added: tuple[str, ...]
    conflicts: tuple[str, ...] = ()

    @property
    def has_new_fields(self) -> bool:
        """Whether the newer schema has fields to adopt."""
        return bool(self.added)


def evolve(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    """Merge the new fields of a newer schema of the registry into a reader schema."""
    if newer.kind != resolved.format.kind:
        message = f"newer schema has format {newer.kind}, expected {resolved.format.kind}"
        raise UsageError(message, "Specify a subject with schemas of the same format.")
    match resolved.format:
        case AvroFormat():
            return _avro(resolved, newer)
        case ProtobufFormat():
            return _protobuf(resolved, newer)
        case JsonFormat():
            return _json(resolved, newer)
    raise AssertionError(newer.kind)


def _avro(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    conflicts: list[str] = []
    theirs = parse_avro(newer.text, [text for _, text in newer.references])
    merged = merge_avro_schema(parse_avro(resolved.reader), theirs, conflicts)
    columns = avro_columns(merged)
    wrapped = is_wrapped(merged)
    resolved_new = build_resolved_format(
        resolved.format,
        columns.field(0).type if wrapped else columns,
        reader=avro_text(merged),
        wrapped=wrapped,
        logical_types=avro_logical_types(merged),
    )
    return _evolution(resolved, resolved_new, conflicts)


def _protobuf(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    conflicts: list[str] = []
    files = merge_proto_files(load_files(resolved.reader), registered_files(newer), conflicts)
    pool = Pool(files)
    columns = protobuf_columns(pool, pool.message(resolved.message))
    resolved_new = build_resolved_format(resolved.format, columns, reader=dump_files(files), message=resolved.message)
    return _evolution(resolved, resolved_new, conflicts)


def _json(resolved: ResolvedFormat, newer: RegisteredSchema) -> Evolution:
    conflicts: list[str] = []
    theirs, raw = json_schema_columns(newer.text, dict(newer.references))
    ours = resolved.physical_type
    theirs = theirs if pa.types.is_struct(theirs) else pa.struct([pa.field("value", theirs)])
    merged = merge_type(ours, theirs, "", conflicts)
    kept = {*resolved.raw, *(path for path in raw if path in added_paths(ours, merged))}
    columns = merged.field(0).type if resolved.wrapped else merged
    return _evolution(
        resolved, build_resolved_format(resolved.format, columns, raw=sorted(kept), wrapped=resolved.wrapped), conflicts
    )


def _evolution(before: ResolvedFormat, after: ResolvedFormat, conflicts: list[str]) -> Evolution:
    added = tuple(added_paths(before.physical_type, after.physical_type))
    return Evolution(after if added else before, added, tuple(conflicts))


def merge_type(ours: pa.DataType, theirs: pa.DataType, path: str, conflicts: list[str]) -> pa.DataType:
    """Return our type with the fields that theirs adds; other differences are appended to `conflicts`."""
    if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
        return _struct(ours, theirs, path, conflicts)
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        return pa.list_(pa.field("element", merge_type(ours.value_type, theirs.value_type, f"{path}[]", conflicts)))
    if pa.types.is_map(ours) and pa.types.is_map(theirs):
        value = merge_type(ours.item_type, theirs.item_type, f"{path}.value", conflicts)
        return pa.map_(ours.key_field, pa.field("value", value))
    if ours != theirs:
        conflicts.append(f'field "{path}": {theirs} in the newer schema, {ours} in the reader schema')
    return ours


def added_paths(before: pa.DataType, after: pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that the merged type has and the earlier one lacks."""
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


def _struct(ours: pa.StructType, theirs: pa.StructType, path: str, conflicts: list[str]) -> pa.StructType:
    others = {field.name: field.type for field in theirs}
    fields = []
    for field in ours:
        below = f"{path}.{field.name}" if path else field.name
        other = others.pop(field.name, field.type)
        fields.append(pa.field(field.name, merge_type(field.type, other, below, conflicts)))
    return pa.struct([*fields, *(pa.field(name, kind) for name, kind in others.items())])
