"""Resolved formats of a topic: the formats of a statement, with all schemas looked up.

::

    KEY FORMAT, VALUE FORMAT ─▶ Format ─▶ ResolvedFormat       latest schema of <topic>-key, <topic>-value
                                            ▲                   a descriptor file
                                            └── sample          first messages, for JSON without explicit columns

This happens once, when a source is created. The result is stored with its tables; fields that values gain later are
added by capture (`penstock.sources.kafka.schema_followers`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from penstock.errors import DefiniteError, UsageError
from penstock.formats import (
    AvroFormat,
    BytesFormat,
    Format,
    JsonFormat,
    ProtobufFormat,
    Registry,
    RegistryAddress,
    ResolvedFormat,
    SubjectVersion,
    TextFormat,
    resolve,
)
from penstock.formats.columns import Columns
from penstock.formats.ddl import ddl_columns
from penstock.formats.json.connect_schema import connect_schema
from penstock.formats.json.decoder import json_plan
from penstock.formats.resolution import build_resolved_format
from penstock.sources.kafka.message_formats import (
    AvroOptions,
    BytesOptions,
    CsvOptions,
    FormatOptions,
    JsonOptions,
    JsonShape,
    ProtobufOptions,
    TextOptions,
    has_row,
    in_payload,
    record_shape,
    rows_of,
)
from penstock.sources.kafka.option_syntax import ddl
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions

__all__ = ["Message", "TopicFormats", "followed_subject"]

Message = tuple[bytes | None, bytes | None]
"""A key and a value."""
_SAMPLE, _LARGEST_SAMPLE = 500, 20_000
"""The sizes of a sample: the usual one, and the largest if no message in it contains a row."""
_RECORDS = (EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT)
_GIVE_COLUMNS = "Specify the columns (with Debezium, those of the row): JSON COLUMNS (id bigint, …); or use TEXT."


class TopicFormats:
    """The formats of keys and values of one topic; `messages` returns its first messages if they are needed."""

    def __init__(
        self,
        what: KafkaSqlOptions,
        address: RegistryAddress | None,
        topic: str,
        messages: Callable[[], Iterator[Message]],
    ) -> None:
        self._what, self._topic, self._messages = what, topic, messages
        self._address = address
        self._registry = None if address is None else Registry(address)
        self._records = what.envelope.kind in _RECORDS
        self._sampled: list[Message] | None = None

    def key(self) -> ResolvedFormat | None:
        """Return the format of keys; None if keys are not read."""
        given = self._what.key_format
        return None if given is None else self._resolved(given, "key")

    def value(self) -> ResolvedFormat:
        """Return the format of values."""
        return self._resolved(self._what.values(), "value")

    def value_version(self) -> SubjectVersion | None:
        """Return the latest version of the values' subject; None if no subject determines their columns."""
        described = self._described(self._what.values())
        subject = followed_subject(described, f"{self._topic}-value")
        if subject is None or self._registry is None:
            return None
        found = self._registry.versions_after(subject, None)
        return found[-1][0] if found else None

    def _resolved(self, given: FormatOptions, part: str) -> ResolvedFormat:
        described = self._described(given)
        if isinstance(given, JsonOptions) and isinstance(described, JsonFormat):
            if given.columns and self._records:
                return _of_shape(described, _given_shape(given, part))
            if not given.columns and described.registry is None:
                return self._inferred(given, described, part)
        return resolve(described, subject=f"{self._topic}-{part}", registry=self._registry)

    def _described(self, given: FormatOptions) -> Format:
        match given:
            case AvroOptions():
                return AvroFormat(
                    registry=self._address_for(given.without_registry),
                    subject=given.subject,
                    reader_schema=given.reader_schema,
                )
            case JsonOptions():
                return JsonFormat(
                    registry=self._address_for(given.without_registry),
                    subject=given.subject,
                    columns=ddl(given.columns) or None,
                    extra=given.extra_fields,
                )
            case ProtobufOptions():
                return ProtobufFormat(
                    registry=self._address_for(given.without_registry),
                    subject=given.subject,
                    descriptor_set=_descriptor_set(given),
                    message=given.message,
                    nanoseconds=given.nanoseconds,
                )
            case CsvOptions():
                return given.described()
            case TextOptions():
                return TextFormat()
            case BytesOptions():
                return BytesFormat()

    def _address_for(self, without: bool) -> RegistryAddress | None:
        return None if without else self._address

    def _inferred(self, given: JsonOptions, described: JsonFormat, part: str) -> ResolvedFormat:
        """Infer columns from messages, or from the schemas that they contain."""
        parts = [message[0 if part == "key" else 1] for message in self._sample()]
        sample = [each for each in parts if each is not None]
        wrapped = connect_schema(sample) is not None
        if given.schemas_enabled and not wrapped:
            message = (
                f"SCHEMAS ENABLED requires {{schema, payload}} messages, but {part}s of topic {self._topic} are not"
            )
            raise UsageError(message, "Remove SCHEMAS ENABLED.")
        try:
            if self._records and part == "value" and not wrapped:
                return _of_shape(described, record_shape(rows_of(sample)))
            return resolve(described, sample=sample)
        except DefiniteError as error:
            message = f"{part}s of topic {self._topic}: {error.message}"
            raise DefiniteError(message, _GIVE_COLUMNS) from None

    def _sample(self) -> list[Message]:
        """Return the first messages; more of them if the first records contain no row."""
        if self._sampled is None:
            messages = islice(self._messages(), _LARGEST_SAMPLE)
            sampled = list(islice(messages, _SAMPLE))
            if self._records and not any(has_row(value) for _, value in sampled):
                sampled += _upto(messages, lambda message: has_row(message[1]))
            self._sampled = sampled
        if not self._sampled:
            message = f"could not infer columns: topic {self._topic} has no messages"
            raise DefiniteError(message, f"{_GIVE_COLUMNS} Or write a message first.")
        return self._sampled


def followed_subject(given: Format, usual: str) -> str | None:
    """Return the subject whose latest schema a format uses; None if the schema was given explicitly."""
    match given:
        case AvroFormat(registry=address, reader_schema=None, subject=named) if address is not None:
            return named or usual
        case JsonFormat(registry=address, columns=None, subject=named) if address is not None:
            return named or usual
        case ProtobufFormat(registry=address, descriptor_set=None, subject=named) if address is not None:
            return named or usual
    return None


def _upto(messages: Iterator[Message], last: Callable[[Message], bool]) -> Iterator[Message]:
    for message in messages:
        yield message
        if last(message):
            return


def _given_shape(given: JsonOptions, part: str) -> JsonShape:
    """Return the shape of Debezium messages whose row or key columns are given."""
    shape = JsonShape(ddl_columns(ddl(given.columns)))
    shape = record_shape(shape) if part == "value" else shape
    return in_payload(shape) if given.schemas_enabled else shape


def _of_shape(described: JsonFormat, shape: JsonShape) -> ResolvedFormat:
    resolved = build_resolved_format(described, shape.type, raw=shape.raw, wrapped=not pa.types.is_struct(shape.type))
    json_plan(Columns(resolved.physical_type), raw=list(shape.raw), wrapped=resolved.wrapped, refuse_extra=False)
    return resolved


def _descriptor_set(given: ProtobufOptions) -> str | None:
    file = given.descriptor_file()
    return given.descriptor if file is None else _read(file)


def _read(file: Path) -> str:
    try:
        return base64.b64encode(file.read_bytes()).decode("ascii")
    except OSError as error:
        message = f"could not read descriptor set {file}: {error.strerror}"
        hint = "Create it, readable by this user, with: protoc --include_imports --descriptor_set_out=FILE …"
        raise DefiniteError(message, hint) from None
