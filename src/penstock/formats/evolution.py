"""Evolution: may the reader schema grow to what a newer schema has?

Only fields that are added, and only at the end: of the message, or of a struct within it. So every column that is there
keeps its place and type, and rows that were read before stay valid, with null in what is new. A field that the newer
schema no longer has stays a column. One that it has with another type stays as it is, and is an obstacle that is named:
messages with the new type may then be problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.avro.growth import grown_avro
from penstock.formats.avro.meanings import avro_meanings
from penstock.formats.avro.schema import parse_avro
from penstock.formats.avro.text import avro_text
from penstock.formats.avro.types import avro_columns, is_wrapped
from penstock.formats.format import AvroFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.json.json_schema import json_schema_columns
from penstock.formats.protobuf.descriptor import Pool, files_of_text, files_text
from penstock.formats.protobuf.growth import grown_files
from penstock.formats.protobuf.registered import registered_files
from penstock.formats.protobuf.types import protobuf_columns
from penstock.formats.registry import RegisteredSchema
from penstock.formats.resolving import fixed
from penstock.formats.type_growth import added_paths, grown_type

__all__ = ["Evolution", "evolved"]


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
        meanings=avro_meanings(grown),
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
    ours = resolved.arrow_type
    theirs = theirs if pa.types.is_struct(theirs) else pa.struct([pa.field("value", theirs)])
    grown = grown_type(ours, theirs, "", obstacles)
    kept = {*resolved.raw, *(path for path in raw if path in added_paths(ours, grown))}
    columns = grown.field(0).type if resolved.wrapped else grown
    return _found(resolved, fixed(resolved.format, columns, raw=sorted(kept), wrapped=resolved.wrapped), obstacles)


def _found(before: ResolvedFormat, after: ResolvedFormat, obstacles: list[str]) -> Evolution:
    added = tuple(added_paths(before.arrow_type, after.arrow_type))
    return Evolution(after if added else before, added, tuple(obstacles))
