"""Resolving a format: the reader schema is found once, from where the format says, and is fixed from then on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from penstock.errors import DefiniteError, UsageError
from penstock.formats.avro.schema import avro_text, parse_avro
from penstock.formats.avro.types import avro_columns, avro_logical_types, is_wrapped
from penstock.formats.columns import Columns
from penstock.formats.ddl import ddl_columns
from penstock.formats.format import (
    AvroFormat,
    CsvFormat,
    Format,
    JsonFormat,
    LogicalType,
    ProtobufFormat,
    ResolvedFormat,
    TextFormat,
)
from penstock.formats.json.connect_schema import connect_schema
from penstock.formats.json.plan import json_plan
from penstock.formats.json.schemas import inferred_columns, json_schema_columns
from penstock.formats.protobuf.descriptor import Pool, ProtoFile, files_text
from penstock.formats.protobuf.descriptor_set import parse_descriptor_set
from penstock.formats.protobuf.registered import registered_files
from penstock.formats.protobuf.types import protobuf_columns
from penstock.formats.registry import RegisteredSchema, Registry, RegistryAddress
from penstock.formats.text_put import scalar_rule

__all__ = ["fixed", "latest_schema", "resolve"]


def resolve(
    described: Format,
    *,
    subject: str | None = None,
    registry: Registry | None = None,
    sample: Iterable[bytes] | None = None,
) -> ResolvedFormat:
    """Fix the reader schema of a format.

    `subject` is the registry's subject where the format names none (a topic's is ``<topic>-value``); `registry` a
    client to use instead of a new one; `sample` some messages, for JSON whose columns neither the format nor a
    registry tells.
    """
    match described:
        case AvroFormat():
            return _avro(described, _registered(described, described.reader_schema, "AVRO", subject, registry))
        case JsonFormat():
            return _json(described, subject, registry, sample)
        case ProtobufFormat():
            return _protobuf(described, subject, registry)
        case CsvFormat():
            return fixed(described, _csv_columns(described))
        case TextFormat():
            return fixed(described, pa.struct([pa.field("text", pa.string())]))
    return fixed(described, pa.struct([pa.field("data", pa.binary())]))


def fixed(
    described: Format,
    columns: pa.DataType,
    *,
    reader: str = "",
    message: str = "",
    raw: Iterable[str] = (),
    wrapped: bool = False,
    logical_types: Iterable[LogicalType] = (),
) -> ResolvedFormat:
    """Put a resolved format together."""
    spark_type = from_arrow_type(pa.struct([pa.field("value", columns)]) if wrapped else columns)
    assert isinstance(spark_type, StructType)
    _check_names(spark_type)
    return ResolvedFormat(
        format=described,
        columns=spark_type.json(),
        reader=reader,
        message=message,
        raw=tuple(raw),
        wrapped=wrapped,
        logical_types=tuple(logical_types),
    )


def latest_schema(
    address: RegistryAddress, subject: str | None, kind: str, registry: Registry | None
) -> RegisteredSchema:
    """Return the latest schema of a subject, which is of this kind."""
    if subject is None:
        message = "no subject of the schema registry is named"
        raise UsageError(message, "Name it: subject = '<topic>-value'.")
    found = (registry or Registry(address)).latest(subject)
    if found.kind != kind:
        message = f"the subject {subject!r} of the schema registry has a schema of {found.kind}, not of {kind}"
        raise UsageError(message, f"Write FORMAT {found.kind}, or name another subject.")
    return found


def _registered(
    described: AvroFormat | JsonFormat | ProtobufFormat,
    given: str | None,
    kind: str,
    subject: str | None,
    registry: Registry | None,
) -> RegisteredSchema:
    if given is not None:
        return RegisteredSchema(kind=kind, text=given)
    assert described.registry is not None
    return latest_schema(described.registry, described.subject or subject, kind, registry)


def _avro(described: AvroFormat, found: RegisteredSchema) -> ResolvedFormat:
    schema = parse_avro(found.text, [text for _, text in found.references])
    return fixed(
        described,
        _unwrapped(avro_columns(schema), is_wrapped(schema)),
        reader=avro_text(schema),
        wrapped=is_wrapped(schema),
        logical_types=avro_logical_types(schema),
    )


def _unwrapped(columns: pa.DataType, wrapped: bool) -> pa.DataType:
    return columns.field(0).type if wrapped else columns


def _json(
    described: JsonFormat, subject: str | None, registry: Registry | None, sample: Iterable[bytes] | None
) -> ResolvedFormat:
    raw: list[str] = []
    logical_types: list[LogicalType] = []
    reader = ""
    sample = None if sample is None else list(sample)
    if described.columns is not None:
        columns = ddl_columns(described.columns)
    elif described.registry is not None:
        found = latest_schema(described.registry, described.subject or subject, "JSON", registry)
        columns, raw = json_schema_columns(found.text, dict(found.references))
    elif sample is not None and (told := connect_schema(sample)) is not None:
        columns, raw, logical_types, reader = told.columns, told.raw, told.logical_types, told.text
    elif sample is not None:
        columns, raw = inferred_columns(sample)
    else:
        message = (
            "columns of JSON messages are neither given, nor in a registry, nor can they be inferred from messages"
        )
        raise UsageError(message, "Give them (columns = 'id BIGINT, …'), or wait until the topic has messages.")
    wrapped = not pa.types.is_struct(columns)
    resolved = fixed(described, columns, reader=reader, raw=raw, wrapped=wrapped, logical_types=logical_types)
    json_plan(Columns(resolved.physical_type), raw=raw, wrapped=resolved.wrapped, refuse_extra=False)
    return resolved


def _protobuf(described: ProtobufFormat, subject: str | None, registry: Registry | None) -> ResolvedFormat:
    if described.descriptor_set is not None:
        files = parse_descriptor_set(_bytes(described.descriptor_set))
    else:
        files = registered_files(_registered(described, None, "PROTOBUF", subject, registry))
    pool = Pool(files)
    message = described.message or _first_message(files[-1])
    columns = protobuf_columns(pool, pool.message(message))
    return fixed(described, columns, reader=files_text(files), message=message)


def _first_message(file: ProtoFile) -> str:
    if file.messages:
        return file.messages[0].name
    message = "the Protobuf schema of the subject has no message"
    raise DefiniteError(message, "Name another subject.")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        message = "the descriptor set is not in base64"
        raise UsageError(message, "Encode it: base64 -w0 FILE.") from error


def _csv_columns(described: CsvFormat) -> pa.DataType:
    if isinstance(described.columns, int):
        return pa.struct([pa.field(f"column{place}", pa.string()) for place in range(1, described.columns + 1)])
    columns = ddl_columns(described.columns)
    if not pa.types.is_struct(columns):
        message = "columns of CSV have names"
        raise UsageError(message, "Write them as: id BIGINT, name STRING.")
    for field in columns:
        scalar_rule(field.type, field.name)
    return columns


def _check_names(columns: StructType) -> None:
    """Refuse names that Spark cannot tell apart."""
    lowered = [name.lower() for name in columns.names]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        message = f"the schema has fields whose names differ only in case, or not at all: {', '.join(twice)}"
        raise DefiniteError(message, "Give a reader schema without one of them.")
