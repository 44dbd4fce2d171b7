"""Resolve a format: determine its reader schema once, from where the format specifies; then it is fixed."""

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
from penstock.formats.json.decoder import json_plan
from penstock.formats.json.schemas import inferred_columns, json_schema_columns
from penstock.formats.protobuf.descriptor import Pool, ProtoFile, dump_files, parse_descriptor_set
from penstock.formats.protobuf.proto_parser import registered_files
from penstock.formats.protobuf.types import protobuf_columns
from penstock.formats.schema_registry import RegisteredSchema, Registry, RegistryAddress
from penstock.formats.text_writer import scalar_rule

__all__ = ["build_resolved_format", "latest_schema", "resolve"]


def resolve(
    spec: Format,
    *,
    subject: str | None = None,
    registry: Registry | None = None,
    sample: Iterable[bytes] | None = None,
) -> ResolvedFormat:
    """Determine the reader schema of a format.

    `subject` is the registry subject if the format names none (for a topic, ``<topic>-value``); `registry` is a client
    to use instead of a new one; `sample` holds messages from which to infer the columns of JSON, if neither the format
    nor a registry specifies them.
    """
    match spec:
        case AvroFormat():
            return _avro(spec, _registered(spec, spec.reader_schema, "AVRO", subject, registry))
        case JsonFormat():
            return _json(spec, subject, registry, sample)
        case ProtobufFormat():
            return _protobuf(spec, subject, registry)
        case CsvFormat():
            return build_resolved_format(spec, _csv_columns(spec))
        case TextFormat():
            return build_resolved_format(spec, pa.struct([pa.field("text", pa.string())]))
    return build_resolved_format(spec, pa.struct([pa.field("data", pa.binary())]))


def build_resolved_format(
    spec: Format,
    columns: pa.DataType,
    *,
    reader: str = "",
    message: str = "",
    raw: Iterable[str] = (),
    wrapped: bool = False,
    logical_types: Iterable[LogicalType] = (),
) -> ResolvedFormat:
    """Build a resolved format from its parts."""
    spark_type = from_arrow_type(pa.struct([pa.field("value", columns)]) if wrapped else columns)
    assert isinstance(spark_type, StructType)
    _check_names(spark_type)
    return ResolvedFormat(
        format=spec,
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
    """Return the latest schema of a subject; raise `UsageError` if it is of another kind."""
    if subject is None:
        message = "missing schema registry subject"
        raise UsageError(message, "Add subject = '<topic>-value'.")
    found = (registry or Registry(address)).latest(subject)
    if found.kind != kind:
        message = f"schema registry subject {subject!r} has format {found.kind}, expected {kind}"
        raise UsageError(message, f"Use FORMAT {found.kind}, or specify another subject.")
    return found


def _registered(
    spec: AvroFormat | JsonFormat | ProtobufFormat,
    given: str | None,
    kind: str,
    subject: str | None,
    registry: Registry | None,
) -> RegisteredSchema:
    if given is not None:
        return RegisteredSchema(kind=kind, text=given)
    assert spec.registry is not None
    return latest_schema(spec.registry, spec.subject or subject, kind, registry)


def _avro(spec: AvroFormat, found: RegisteredSchema) -> ResolvedFormat:
    schema = parse_avro(found.text, [text for _, text in found.references])
    return build_resolved_format(
        spec,
        _unwrapped(avro_columns(schema), is_wrapped(schema)),
        reader=avro_text(schema),
        wrapped=is_wrapped(schema),
        logical_types=avro_logical_types(schema),
    )


def _unwrapped(columns: pa.DataType, wrapped: bool) -> pa.DataType:
    return columns.field(0).type if wrapped else columns


def _json(
    spec: JsonFormat, subject: str | None, registry: Registry | None, sample: Iterable[bytes] | None
) -> ResolvedFormat:
    raw: list[str] = []
    logical_types: list[LogicalType] = []
    reader = ""
    sample = None if sample is None else list(sample)
    if spec.columns is not None:
        columns = ddl_columns(spec.columns)
    elif spec.registry is not None:
        found = latest_schema(spec.registry, spec.subject or subject, "JSON", registry)
        columns, raw = json_schema_columns(found.text, dict(found.references))
    elif sample is not None and (connect := connect_schema(sample)) is not None:
        columns, raw, logical_types, reader = connect.columns, connect.raw, connect.logical_types, connect.text
    elif sample is not None:
        columns, raw = inferred_columns(sample)
    else:
        message = (
            "columns of JSON messages are neither specified, nor in a registry, nor can they be inferred from messages"
        )
        raise UsageError(message, "Specify them (columns = 'id BIGINT, …'), or wait until the topic has messages.")
    wrapped = not pa.types.is_struct(columns)
    resolved = build_resolved_format(
        spec, columns, reader=reader, raw=raw, wrapped=wrapped, logical_types=logical_types
    )
    json_plan(Columns(resolved.physical_type), raw=raw, wrapped=resolved.wrapped, refuse_extra=False)
    return resolved


def _protobuf(spec: ProtobufFormat, subject: str | None, registry: Registry | None) -> ResolvedFormat:
    if spec.descriptor_set is not None:
        files = parse_descriptor_set(_bytes(spec.descriptor_set))
    else:
        files = registered_files(_registered(spec, None, "PROTOBUF", subject, registry))
    pool = Pool(files)
    message = spec.message or _first_message(files[-1])
    columns = protobuf_columns(pool, pool.message(message))
    return build_resolved_format(spec, columns, reader=dump_files(files), message=message)


def _first_message(file: ProtoFile) -> str:
    if file.messages:
        return file.messages[0].name
    message = "Protobuf schema of the subject defines no message"
    raise DefiniteError(message, "Specify another subject.")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        message = "descriptor set is not valid base64"
        raise UsageError(message, "Encode it with: base64 -w0 FILE") from error


def _csv_columns(spec: CsvFormat) -> pa.DataType:
    if isinstance(spec.columns, int):
        return pa.struct([pa.field(f"column{place}", pa.string()) for place in range(1, spec.columns + 1)])
    columns = ddl_columns(spec.columns)
    if not pa.types.is_struct(columns):
        message = "columns of format CSV must have names"
        raise UsageError(message, "Define columns as: id BIGINT, name STRING.")
    for field in columns:
        scalar_rule(field.type, field.name)
    return columns


def _check_names(columns: StructType) -> None:
    """Raise if names differ only in case: Spark cannot distinguish them."""
    lowered = [name.lower() for name in columns.names]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        message = f"schema has duplicate field names, ignoring case: {', '.join(twice)}"
        raise DefiniteError(message, "Specify a reader schema without the duplicates.")
