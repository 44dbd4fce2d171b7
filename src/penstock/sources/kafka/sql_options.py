"""The options of a Kafka source before WITH: brokers, topics, formats, columns, envelope."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.formats.format import Extra
from penstock.kafka_client.connection import checked_brokers, checked_topic, checked_url, validate_registry_options
from penstock.kafka_client.option_values import Word, read_options
from penstock.sources.kafka.message_formats import FormatOptions, JsonOptions, RegisteredOptions, format_named
from penstock.sources.kafka.option_syntax import EnvelopeText
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sql.syntax.names import Inclusion, Inclusions
from penstock.sql.syntax.options import Keyword
from penstock.sql.syntax.values import alternatives

__all__ = [
    "Envelope",
    "EnvelopeKind",
    "KafkaSqlOptions",
    "Metadata",
    "validate_together",
]

_FROZEN = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Metadata(Word):
    """Metadata of a message."""

    KEY = "key"
    """Its key."""
    PARTITION = "partition"
    """The number of its partition."""
    OFFSET = "offset"
    """Its offset in the partition."""
    TIMESTAMP = "timestamp"
    """Its timestamp, as selected by `timestamp_type`."""
    HEADERS = "headers"
    """Its headers."""


class EnvelopeKind(Word):
    """How a message changes the table."""

    NONE = "none"
    """Each message is a new row; rows are only added."""
    UPSERT = "upsert"
    """Each message is the latest row of its key; a message without a value deletes that row."""
    DEBEZIUM = "debezium"
    """Each message is a change written by Debezium: the row before and after it."""
    DEBEZIUM_UPSERT = "debezium upsert"
    """The same, but only the row after the change is used, as the latest row of its key."""


class Envelope(BaseModel):
    """How messages become changes of a table."""

    model_config = _FROZEN

    kind: EnvelopeKind = EnvelopeKind.NONE
    transaction_metadata_topic: str | None = Field(
        default=None, description="the topic to which Debezium writes transaction metadata"
    )


class KafkaSqlOptions(BaseModel):
    """Where a Kafka source reads from, and in which formats."""

    model_config = _FROZEN

    NAME: ClassVar[str] = "a Kafka source"

    broker: str = Field(description="one or more brokers, host:port, separated by commas")
    topic: Annotated[str | None, Keyword("TOPIC", one_of="topics")] = Field(default=None, description="the topic")
    topics: Annotated[tuple[str, ...], Keyword("TOPICS", one_of="topics")] = Field(
        default=(), description="several topics instead of one, a table for each; all have the same formats"
    )
    format: Annotated[FormatOptions | None, Keyword("FORMAT", one_of="values")] = Field(
        default=None, description="format of values; keys are not read"
    )
    key_format: FormatOptions | None = Field(default=None, description="format of keys; without it keys are not read")
    value_format: Annotated[FormatOptions | None, Keyword("VALUE FORMAT", one_of="values")] = Field(
        default=None, description="format of values"
    )
    schema_registry: Annotated[str | None, Keyword("USING SCHEMA REGISTRY")] = Field(
        default=None, description="URL of the schema registry"
    )
    include: Annotated[tuple[Inclusion, ...], Inclusions(tuple(Metadata))] = Field(
        default=(), description="columns for message metadata"
    )
    envelope: Annotated[Envelope, EnvelopeText()] = Field(
        default=Envelope(), description="how messages become changes of a table"
    )

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Parse options by name; raise `UsageError` if one is unknown or invalid."""
        return read_options(cls, cls.NAME, options, {})

    @field_validator("broker")
    @classmethod
    def _hosts_and_ports(cls, text: str) -> str:
        return checked_brokers(text)

    @field_validator("format", "key_format", "value_format", mode="before")
    @classmethod
    def _a_format(cls, given: Any) -> Any:
        return format_named(given)

    @field_validator("topic")
    @classmethod
    def _a_topic(cls, name: str | None) -> str | None:
        return None if name is None else checked_topic(name)

    @field_validator("topics")
    @classmethod
    def _topics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _checked_topics(names)

    @field_validator("schema_registry")
    @classmethod
    def _a_url(cls, url: str | None) -> str | None:
        return None if url is None else checked_url(url)

    @model_validator(mode="after")
    def _clauses_together(self) -> Self:
        _names_topics_and_a_format(self)
        _one_name_each(self.include)
        _formats_have_schemas(self)
        _envelope_fits(self)
        return self

    def names(self) -> tuple[str, ...]:
        """Return the data topics."""
        return self.topics if self.topic is None else (self.topic,)

    def values(self) -> FormatOptions:
        """Return the format of values."""
        found = self.value_format if self.format is None else self.format
        assert found is not None, "validation requires a format of values"
        return found


def validate_together(what: KafkaSqlOptions, how: KafkaWithOptions) -> None:
    """Raise `UsageError` if the options before WITH and those after it are incompatible."""
    validate_registry_options(what.schema_registry, how)
    if isinstance(how.start_offset, tuple) and len(what.names()) > 1:
        message = f'offsets in option "start_offset" require a single topic, not {len(what.names())}'
        hint = 'Use { earliest | latest }, or option "start_timestamp"; or create a source for each topic.'
        raise UsageError(message, hint)


_DEBEZIUM = (EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT)


def _checked_topics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        checked_topic(name)
        if names.count(name) > 1:
            message = f'topic "{name}" specified more than once'
            raise UsageError(message, "List each topic once.")
    return names


def _names_topics_and_a_format(options: KafkaSqlOptions) -> None:
    if options.topic is not None and options.topics:
        message = "TOPIC and TOPICS are mutually exclusive"
        raise UsageError(message, "Use TOPIC 'name', or TOPICS ('name', 'name').")
    if not options.names():
        message = "missing TOPIC clause"
        raise UsageError(message, "Add TOPIC 'name', or TOPICS ('name', 'name').")
    if options.format is None and options.value_format is None:
        message = "missing FORMAT clause"
        raise UsageError(message, "Add FORMAT JSON or another format, or KEY FORMAT … VALUE FORMAT ….")
    if options.format is not None and options.value_format is not None:
        message = "FORMAT and VALUE FORMAT are mutually exclusive"
        raise UsageError(message, "Use FORMAT alone, or KEY FORMAT and VALUE FORMAT.")
    if options.format is not None and options.key_format is not None:
        message = "KEY FORMAT and FORMAT are mutually exclusive: FORMAT does not read keys"
        raise UsageError(message, "Use VALUE FORMAT instead of FORMAT.")


def _one_name_each(columns: tuple[Inclusion, ...]) -> None:
    if strangers := [column.what for column in columns if column.what not in tuple(Metadata)]:
        message = f'unrecognized INCLUDE column "{strangers[0]}"'
        raise UsageError(message, f"Use {alternatives(Metadata)}.")
    names = [(column.name or column.what).lower() for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f'INCLUDE column "{twice[0]}" specified more than once'
        raise UsageError(message, "Rename one of them with AS.")


def _formats_have_schemas(options: KafkaSqlOptions) -> None:
    formats = [f for f in (options.key_format, options.values()) if isinstance(f, RegisteredOptions)]
    by_registry = [f for f in formats if options.schema_registry is not None and not f.without_registry]
    for each in formats:
        if each not in by_registry:
            _validate_registry(each, options.schema_registry)
    if options.schema_registry is not None and not by_registry:
        message = "no format uses the schema registry"
        raise UsageError(message, "Remove USING SCHEMA REGISTRY; only AVRO, JSON and PROTOBUF use one.")


def _validate_registry(format: RegisteredOptions, registry: str | None) -> None:
    """Reject a format that requires a registry, or an option that refers to a missing one."""
    if registry is None and format.without_registry:
        message = f"{format.NAME} WITHOUT REGISTRY is invalid without a schema registry"
        raise UsageError(message, "Remove WITHOUT REGISTRY.")
    if format.subject is not None:
        message = f"SUBJECT of {format.NAME} requires a schema registry"
        raise UsageError(message, "Add USING SCHEMA REGISTRY 'https://…', or remove SUBJECT.")
    if not format.has_own_schema and format.without_registry:
        message = f"{format.NAME} WITHOUT REGISTRY requires an explicit schema"
        raise UsageError(message, f"Add {_OWN_SCHEMAS[format.NAME]}, or remove WITHOUT REGISTRY.")
    if not format.has_own_schema:
        message = f"format {format.NAME} requires a schema registry or an explicit schema"
        raise UsageError(message, f"Add USING SCHEMA REGISTRY 'https://…', or {_OWN_SCHEMAS[format.NAME]}.")


_OWN_SCHEMAS = {"AVRO": "SCHEMA '{…}' after AVRO", "PROTOBUF": "MESSAGE '…' USING DESCRIPTOR '…' after PROTOBUF"}


def _envelope_fits(options: KafkaSqlOptions) -> None:
    kind, topic = options.envelope.kind, options.envelope.transaction_metadata_topic
    if topic is not None and kind not in _DEBEZIUM:
        message = "TRANSACTION METADATA requires a DEBEZIUM envelope"
        raise UsageError(message, "Use ENVELOPE DEBEZIUM, or remove TRANSACTION METADATA.")
    if topic is not None and checked_topic(topic) in options.names():
        message = f'topic "{topic}" is both a data topic and the topic of transaction metadata'
        raise UsageError(message, "Use the topic to which Debezium writes transaction metadata.")
    if kind is not EnvelopeKind.NONE and options.key_format is None:
        message = f"ENVELOPE {kind.value.upper()} requires a KEY FORMAT"
        raise UsageError(message, "Add KEY FORMAT … VALUE FORMAT ….")
    if any(column.what == Metadata.KEY for column in options.include) and options.key_format is None:
        message = "INCLUDE KEY requires a KEY FORMAT"
        raise UsageError(message, "Add KEY FORMAT … VALUE FORMAT …; KEY FORMAT BYTES returns raw keys.")
    for each in (options.key_format, options.values()):
        if isinstance(each, JsonOptions):
            _json_fits(each, kind in _DEBEZIUM)


def _json_fits(json: JsonOptions, by_debezium: bool) -> None:
    if json.schemas_enabled and not by_debezium:
        message = "SCHEMAS ENABLED requires a DEBEZIUM envelope"
        raise UsageError(
            message, "Use a DEBEZIUM envelope, or set schemas.enable=false in the converter that writes the topic."
        )
    if json.extra_fields is Extra.REFUSE and by_debezium:
        message = (
            "EXTRA FIELDS REFUSE is invalid with a DEBEZIUM envelope: Debezium records have fields that are not read"
        )
        raise UsageError(message, "Remove EXTRA FIELDS.")
