"""Schema evolution: merge the new fields of a newer schema into the reader schema.

Fields can only be added, and only at the end: of the message, or of a struct within it. So every existing column keeps
its position and type, and rows decoded earlier stay valid, with null in new columns. A field that the newer schema
removed remains a column. A field whose type changed keeps its old type and is reported as a conflict: messages with the
new type may be rejected.

A caller that cannot use a field at every place passes `may_add`: whether a field may be added at a path, such as
``after.note``. What it excludes is not part of the result, and messages with it are decoded without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.avro.schema import AvroField, AvroType, avro_text, parse_avro
from penstock.formats.avro.types import avro_columns, avro_logical_types, column_type, is_wrapped, members
from penstock.formats.format import AvroFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.json.schemas import json_schema_columns
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoFile, ProtoMessage, dump_files, load_files
from penstock.formats.protobuf.proto_parser import registered_files
from penstock.formats.protobuf.types import field_kind, protobuf_columns, type_of
from penstock.formats.resolution import build_resolved_format
from penstock.formats.schema_registry import RegisteredSchema

__all__ = [
    "Evolution",
    "MayAdd",
    "added_paths",
    "evolve",
    "merge_avro_schema",
    "merge_proto_files",
    "merge_type",
]

MayAdd = Callable[[str], bool]


def _anywhere(_: str) -> bool:
    return True


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


def evolve(resolved: ResolvedFormat, newer: RegisteredSchema, may_add: MayAdd = _anywhere) -> Evolution:
    """Merge the new fields of a newer schema of the registry into a reader schema."""
    if newer.kind != resolved.format.kind:
        message = f"newer schema has format {newer.kind}, expected {resolved.format.kind}"
        raise UsageError(message, "Specify a subject with schemas of the same format.")
    match resolved.format:
        case AvroFormat():
            return _avro(resolved, newer, may_add)
        case ProtobufFormat():
            return _protobuf(resolved, newer, may_add)
        case JsonFormat():
            return _json(resolved, newer, may_add)
    raise AssertionError(newer.kind)


def _avro(resolved: ResolvedFormat, newer: RegisteredSchema, may_add: MayAdd) -> Evolution:
    conflicts: list[str] = []
    theirs = parse_avro(newer.text, [text for _, text in newer.references])
    merged = merge_avro_schema(parse_avro(resolved.reader), theirs, conflicts, may_add)
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


def _protobuf(resolved: ResolvedFormat, newer: RegisteredSchema, may_add: MayAdd) -> Evolution:
    conflicts: list[str] = []
    ours = load_files(resolved.reader)
    places = _places(Pool(ours), resolved.message)
    files = merge_proto_files(
        ours,
        registered_files(newer),
        conflicts,
        lambda message, field: may_add == _anywhere or any(may_add(f"{at}{field}") for at in places.get(message, ())),
    )
    pool = Pool(files)
    columns = protobuf_columns(pool, pool.message(resolved.message))
    resolved_new = build_resolved_format(resolved.format, columns, reader=dump_files(files), message=resolved.message)
    return _evolution(resolved, resolved_new, conflicts)


def _json(resolved: ResolvedFormat, newer: RegisteredSchema, may_add: MayAdd) -> Evolution:
    conflicts: list[str] = []
    theirs, raw = json_schema_columns(newer.text, dict(newer.references))
    ours = resolved.physical_type
    theirs = theirs if pa.types.is_struct(theirs) else pa.struct([pa.field("value", theirs)])
    merged = merge_type(ours, theirs, "", conflicts, may_add)
    kept = {*resolved.raw, *(path for path in raw if path in added_paths(ours, merged))}
    columns = merged.field(0).type if resolved.wrapped else merged
    return _evolution(
        resolved, build_resolved_format(resolved.format, columns, raw=sorted(kept), wrapped=resolved.wrapped), conflicts
    )


def _evolution(before: ResolvedFormat, after: ResolvedFormat, conflicts: list[str]) -> Evolution:
    added = tuple(added_paths(before.physical_type, after.physical_type))
    return Evolution(after if added else before, added, tuple(conflicts))


def merge_type(
    ours: pa.DataType, theirs: pa.DataType, path: str, conflicts: list[str], may_add: MayAdd = _anywhere
) -> pa.DataType:
    """Return our type with the fields that theirs adds; other differences are appended to `conflicts`."""
    if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
        return _struct(ours, theirs, path, conflicts, may_add)
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        item = merge_type(ours.value_type, theirs.value_type, f"{path}[]", conflicts, may_add)
        return pa.list_(pa.field("element", item))
    if pa.types.is_map(ours) and pa.types.is_map(theirs):
        value = merge_type(ours.item_type, theirs.item_type, f"{path}.value", conflicts, may_add)
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


def _struct(
    ours: pa.StructType, theirs: pa.StructType, path: str, conflicts: list[str], may_add: MayAdd
) -> pa.StructType:
    others = {field.name: field.type for field in theirs}
    fields = []
    for field in ours:
        below = f"{path}.{field.name}" if path else field.name
        other = others.pop(field.name, field.type)
        fields.append(pa.field(field.name, merge_type(field.type, other, below, conflicts, may_add)))
    added = (pa.field(name, kind) for name, kind in others.items() if may_add(f"{path}.{name}" if path else name))
    return pa.struct([*fields, *added])


# -- Avro --------------------------------------------------------------------------------------------------------------


def merge_avro_schema(ours: AvroType, theirs: AvroType, conflicts: list[str], may_add: MayAdd = _anywhere) -> AvroType:
    """Return our schema with the fields that theirs adds; other differences are appended to `conflicts`."""
    return _AvroMerger(conflicts, may_add).merge(ours, theirs, "")


class _AvroMerger:
    def __init__(self, conflicts: list[str], may_add: MayAdd) -> None:
        self._conflicts = conflicts
        self._may_add = may_add
        self._merged: dict[str, AvroType] = {}

    def merge(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        if ours.kind == "union":
            return self._union(ours, theirs, path)
        theirs = members(theirs)[0] if len(members(theirs)) == 1 else theirs
        if ours.kind == theirs.kind == "record":
            return self._record(ours, theirs, path)
        if ours.kind == theirs.kind and ours.kind in ("array", "map"):
            return replace(ours, items=self.merge(ours.inner, theirs.inner, f"{path}[]"))
        same = column_type(ours) == column_type(theirs) and ours.connect_name == theirs.connect_name
        if ours.kind in ("array", "map") or not same:
            self._conflicts.append(f'field "{path}": {theirs} in the newer schema, {ours} in the reader schema')
        return ours

    def _union(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        own, other = members(ours), members(theirs)
        if len(own) != 1 or len(other) != 1:
            if [str(one) for one in own] != [str(one) for one in other]:
                self._conflicts.append(f'field "{path}": union has other members in the newer schema')
            return ours
        merged = self.merge(own[0], other[0], path)
        return replace(ours, branches=[merged if one is own[0] else one for one in ours.branches])

    def _record(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        """Merge a record once: a name denotes one type wherever it is used."""
        if ours.name in self._merged:
            return self._merged[ours.name]
        merged = replace(ours, fields=[])
        self._merged[ours.name] = merged
        others = {one.name: one for one in theirs.fields}
        for one in ours.fields:
            below = f"{path}.{one.name}" if path else one.name
            other = others.pop(one.name, None) or next((others.pop(a) for a in one.aliases if a in others), one)
            merged.fields.append(replace(one, type=self.merge(one.type, other.type, below)))
        added = (one for one in others.values() if self._may_add(f"{path}.{one.name}" if path else one.name))
        merged.fields += [_nullable(one) for one in added]
        return merged


def _nullable(one: AvroField) -> AvroField:
    """Return an added field with a default, so that older messages may lack it."""
    if one.has_default:
        return one
    null = AvroType("null")
    if one.type.kind != "union":
        return replace(one, type=AvroType("union", branches=[null, one.type]), default=None)
    if any(branch.kind == "null" for branch in one.type.branches):
        return replace(one, default=None)
    return replace(one, type=replace(one.type, branches=[null, *one.type.branches]), default=None)


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def merge_proto_files(
    ours: list[ProtoFile],
    theirs: list[ProtoFile],
    conflicts: list[str],
    may_add: Callable[[str, str], bool] = lambda _message, _field: True,
) -> list[ProtoFile]:
    """Return our files with the fields that theirs add; other differences are appended to `conflicts`.

    `may_add` tells whether a field may be added to a message, given their names.
    """
    merger = _ProtobufMerger(Pool(ours), Pool(theirs), conflicts, may_add)
    merged = [replace(file, messages=[merger.merge(one) for one in file.messages]) for file in ours]
    known, names = set(merger.ours.messages), set(merger.ours.enums)
    new = ProtoFile(
        messages=[
            replace(one, messages=[], enums=[]) for name, one in merger.theirs.messages.items() if name not in known
        ],
        enums=[one for name, one in merger.theirs.enums.items() if name not in names],
    )
    return [new, *merged]


def _places(pool: Pool, message: str) -> dict[str, list[str]]:
    """Return where messages are in the columns of `message`: itself, and those of its fields, as prefixes of paths."""
    places = {message: [""]}
    for one in pool.message(message).fields:
        if field_kind(pool, one, message) == ops.MESSAGE and not one.repeated:
            places.setdefault(type_of(pool, one, message), []).append(f"{one.name}.")
    return places


class _ProtobufMerger:
    def __init__(self, ours: Pool, theirs: Pool, conflicts: list[str], may_add: Callable[[str, str], bool]) -> None:
        self.ours = ours
        self.theirs = theirs
        self._conflicts = conflicts
        self._may_add = may_add

    def merge(self, message: ProtoMessage) -> ProtoMessage:
        below = [self.merge(one) for one in message.messages]
        newer = self.theirs.messages.get(message.name)
        if newer is None:
            return replace(message, messages=below)
        numbers = {one.number: one for one in message.fields}
        added = []
        for other in newer.fields:
            if other.number not in numbers:
                if not self._may_add(message.name, other.name):
                    continue
                added.append(self._absolute(other, newer.name))
            elif not self._same(numbers[other.number], other, message.name):
                self._conflicts.append(f'field "{message.name}.{other.name}": type differs in the newer schema')
        return replace(message, messages=below, fields=[*message.fields, *added])

    def _same(self, ours: ProtoField, theirs: ProtoField, scope: str) -> bool:
        kind = field_kind(self.ours, ours, scope)
        if ours.repeated != theirs.repeated or kind != field_kind(self.theirs, theirs, scope):
            return False
        return kind not in (ops.MESSAGE, ops.ENUM) or type_of(self.ours, ours, scope) == type_of(
            self.theirs, theirs, scope
        )

    def _absolute(self, field: ProtoField, scope: str) -> ProtoField:
        """Use the full name of the field's type: in the merged message, a relative name could denote another."""
        return replace(field, type_name=f".{type_of(self.theirs, field, scope)}") if field.type_name else field
