"""The options of a Kafka source that stand before WITH: brokers, topics, formats, columns, envelope."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.formats.format import Extra
from penstock.sources.kafka.message_formats import FormatOptions, JsonOptions, RegisteredOptions, format_named
from penstock.sources.kafka.option_syntax import EnvelopeText, Word
from penstock.sources.kafka.validation import given_of, read_options
from penstock.sources.kafka.with_options import KafkaWithOptions, RegistryOptions
from penstock.sources.name_syntax import Inclusion, Inclusions
from penstock.sources.option_syntax import Keyword

__all__ = [
    "Envelope",
    "EnvelopeKind",
    "KafkaSqlOptions",
    "Metadata",
    "refuse_strangers",
]

_BROKER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FROZEN = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Metadata(Word):
    """What is known of a message beside its value."""

    KEY = "key"
    """Its key."""
    PARTITION = "partition"
    """The number of its partition."""
    OFFSET = "offset"
    """Its place in the partition."""
    TIMESTAMP = "timestamp"
    """When it was, by the clock that `timestamp_type` says."""
    HEADERS = "headers"
    """Its headers."""


class EnvelopeKind(Word):
    """What a message says of the row that it is about."""

    NONE = "none"
    """It is a row of its own; rows are added and nothing else."""
    UPSERT = "upsert"
    """It is the newest row of its key; without a value, that row is gone."""
    DEBEZIUM = "debezium"
    """It is a change that Debezium wrote: the row before and after it."""
    DEBEZIUM_UPSERT = "debezium upsert"
    """The same, of which what is after counts, for its key."""


class Envelope(BaseModel):
    """How messages become changes of a table."""

    model_config = _FROZEN

    kind: EnvelopeKind = EnvelopeKind.NONE
    transaction_metadata_topic: str | None = Field(
        default=None, description="the topic in which Debezium says which changes are one transaction"
    )


class KafkaSqlOptions(BaseModel):
    """What a Kafka source is read from, and as what."""

    model_config = _FROZEN

    NAME: ClassVar[str] = "a Kafka source"

    broker: str = Field(description="one or more brokers, host:port, with commas between")
    topic: Annotated[str | None, Keyword("TOPIC", one_of="topics")] = Field(default=None, description="the topic")
    topics: Annotated[tuple[str, ...], Keyword("TOPICS", one_of="topics")] = Field(
        default=(), description="several topics in the place of one, a table each, whose messages are written alike"
    )
    format: Annotated[FormatOptions | None, Keyword("FORMAT", one_of="values")] = Field(
        default=None, description="how values are written, where keys are not read"
    )
    key_format: FormatOptions | None = Field(
        default=None, description="how keys are written; without it they are not read"
    )
    value_format: Annotated[FormatOptions | None, Keyword("VALUE FORMAT", one_of="values")] = Field(
        default=None, description="how values are written"
    )
    schema_registry: Annotated[str | None, Keyword("USING SCHEMA REGISTRY")] = Field(
        default=None, description="the URL of the schema registry"
    )
    include: Annotated[tuple[Inclusion, ...], Inclusions(tuple(Metadata))] = Field(
        default=(), description="columns for what is known of a message"
    )
    envelope: Annotated[Envelope, EnvelopeText()] = Field(
        default=Envelope(), description="how messages become changes of a table"
    )

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Read options by name; what is unknown or makes no sense is a `UsageError`."""
        return read_options(cls, cls.NAME, options, {})

    @field_validator("broker")
    @classmethod
    def _hosts_and_ports(cls, text: str) -> str:
        brokers = [broker.strip() for broker in text.split(",")]
        if not all(_BROKER.fullmatch(broker) for broker in brokers):
            message = "brokers are named by host and port, with commas between"
            raise UsageError(message, "Write them like k1:9092,k2:9092.")
        return ",".join(brokers)

    @field_validator("format", "key_format", "value_format", mode="before")
    @classmethod
    def _a_format(cls, given: Any) -> Any:
        return format_named(given)

    @field_validator("topic")
    @classmethod
    def _a_topic(cls, name: str | None) -> str | None:
        return None if name is None else _checked_topic(name)

    @field_validator("topics")
    @classmethod
    def _topics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _checked_topics(names)

    @field_validator("schema_registry")
    @classmethod
    def _a_url(cls, url: str | None) -> str | None:
        return None if url is None else _checked_url(url)

    @model_validator(mode="after")
    def _clauses_together(self) -> Self:
        _names_topics_and_a_format(self)
        _one_name_each(self.include)
        _formats_have_schemas(self)
        _envelope_fits(self)
        return self

    def names(self) -> tuple[str, ...]:
        """Return the topics whose messages make tables, one or several."""
        return self.topics if self.topic is None else (self.topic,)

    def values(self) -> FormatOptions:
        """Return how values are written."""
        found = self.value_format if self.format is None else self.format
        assert found is not None, "there is one, or the options were refused"
        return found


def refuse_strangers(what: KafkaSqlOptions, how: KafkaWithOptions) -> None:
    """Raise `UsageError` where the options before WITH and those after it do not go together."""
    if what.schema_registry is None and (given := given_of(how, RegistryOptions)):
        message = f"{given[0]} was given, and there is no schema registry"
        raise UsageError(message, "Say which: USING SCHEMA REGISTRY 'https://…'; or leave the option out.")
    https = what.schema_registry is not None and urlsplit(what.schema_registry).scheme == "https"
    if tls := [name for name in given_of(how, RegistryOptions) if "_ssl_" in name and not https]:
        message = f"{tls[0]} was given, and the schema registry's URL is not one of https"
        raise UsageError(message, "Write its URL with https://, or leave the option out.")
    if how.ignore_source_keys:
        kind, hint = what.envelope.kind, "Leave it out."
        why = "its table has no key anyway"
        if kind is not EnvelopeKind.NONE:
            why, hint = "it tells rows apart by their keys", "Leave it out; ENVELOPE NONE makes tables without a key."
        message = f"ignore_source_keys was given, and has no sense with ENVELOPE {kind.value.upper()}: {why}"
        raise UsageError(message, hint)
    if isinstance(how.start_offset, tuple) and len(what.names()) > 1:
        message = "start_offset has offsets of partitions, and there are several topics"
        raise UsageError(
            message, "Begin with earliest, latest or a moment (start_timestamp); or make a source of each."
        )


_DEBEZIUM = (EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT)


def _checked_topic(name: str) -> str:
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        message = f"{name!r} cannot be the name of a Kafka topic"
        raise UsageError(message, "Use letters, digits, dots, dashes and underscores; 249 at most.")
    return name


def _checked_topics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        _checked_topic(name)
        if names.count(name) > 1:
            message = f"the topic {name} is named twice"
            raise UsageError(message, "Name it once.")
    return names


def _names_topics_and_a_format(options: KafkaSqlOptions) -> None:
    if options.topic is not None and options.topics:
        message = "there are both one topic and several"
        raise UsageError(message, "Give TOPIC 'name', or TOPICS ('name', 'name').")
    if not options.names():
        message = "no topic is named"
        raise UsageError(message, "Add TOPIC 'name', or TOPICS ('name', 'name').")
    if options.format is None and options.value_format is None:
        message = "how messages are written is not said"
        raise UsageError(message, "Add FORMAT JSON, or KEY FORMAT … VALUE FORMAT …; or another format.")
    if options.format is not None and options.value_format is not None:
        message = "there are both a FORMAT and a VALUE FORMAT"
        raise UsageError(message, "Give FORMAT alone, or KEY FORMAT and VALUE FORMAT.")
    if options.format is not None and options.key_format is not None:
        message = "there is a KEY FORMAT, and FORMAT is that of messages whose keys are not read"
        raise UsageError(message, "Write VALUE FORMAT in the place of FORMAT.")


def _checked_url(url: str) -> str:
    """Refuse what is not a URL, or holds a user or password; it is not repeated, as it may hold one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        message = "the schema registry is named by a URL that begins with http:// or https://"
        raise UsageError(message, "Write it like https://registry:8081.")
    if "@" in parts.netloc:
        message = "the URL of the schema registry holds a user or password"
        raise UsageError(message, "Give schema_registry_username and schema_registry_password instead.")
    return url


def _one_name_each(columns: tuple[Inclusion, ...]) -> None:
    if strangers := [column.what for column in columns if column.what not in tuple(Metadata)]:
        message = f"there is no {strangers[0]!r} to include"
        raise UsageError(message, f"Choose among {', '.join(Metadata)}.")
    names = [(column.name or column.what).lower() for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f"two columns of INCLUDE have the name {twice[0]}"
        raise UsageError(message, "Give one of them another with AS.")


def _formats_have_schemas(options: KafkaSqlOptions) -> None:
    formats = [f for f in (options.key_format, options.values()) if isinstance(f, RegisteredOptions)]
    by_registry = [f for f in formats if options.schema_registry is not None and not f.without_registry]
    for each in formats:
        if each not in by_registry:
            _refuse_without_registry(each, options.schema_registry)
    if options.schema_registry is not None and not by_registry:
        message = "a schema registry is named, and no format asks it for anything"
        raise UsageError(message, "Leave USING SCHEMA REGISTRY out; AVRO, JSON and PROTOBUF have schemas in one.")


def _refuse_without_registry(format: RegisteredOptions, registry: str | None) -> None:
    """Refuse a format that cannot do without a registry, and what it says of one that is not there."""
    if registry is None and format.without_registry:
        message = f"{format.NAME} WITHOUT REGISTRY was given, and there is no schema registry"
        raise UsageError(message, "Leave WITHOUT REGISTRY out.")
    if format.subject is not None:
        message = f"{format.NAME} has a SUBJECT, and no schema registry"
        raise UsageError(message, "Say which: USING SCHEMA REGISTRY 'https://…'; or leave SUBJECT out.")
    if not format.has_own_schema and format.without_registry:
        message = f"{format.NAME} WITHOUT REGISTRY needs a schema of its own"
        raise UsageError(message, f"Add {_OWN_SCHEMAS[format.NAME]}; or leave WITHOUT REGISTRY out.")
    if not format.has_own_schema:
        message = f"the format {format.NAME} needs a schema registry, or its schema"
        raise UsageError(message, f"Add USING SCHEMA REGISTRY 'https://…', or {_OWN_SCHEMAS[format.NAME]}.")


_OWN_SCHEMAS = {"AVRO": "SCHEMA '{…}' behind AVRO", "PROTOBUF": "MESSAGE '…' USING DESCRIPTOR '…' behind PROTOBUF"}


def _envelope_fits(options: KafkaSqlOptions) -> None:
    kind, topic = options.envelope.kind, options.envelope.transaction_metadata_topic
    if topic is not None and kind not in _DEBEZIUM:
        message = "transaction metadata is something that Debezium writes, and the envelope is another"
        raise UsageError(message, "Choose ENVELOPE DEBEZIUM, or leave TRANSACTION METADATA out.")
    if topic is not None and _checked_topic(topic) in options.names():
        message = f"the topic {topic} cannot hold both messages and transaction metadata"
        raise UsageError(message, "Name the topic that Debezium writes its transactions to.")
    if kind is not EnvelopeKind.NONE and options.key_format is None:
        message = f"ENVELOPE {kind.value.upper()} finds rows by their keys, and the keys' format is not given"
        raise UsageError(message, "Add KEY FORMAT … VALUE FORMAT ….")
    if any(column.what == Metadata.KEY for column in options.include) and options.key_format is None:
        message = "INCLUDE KEY was asked for, and the keys' format is not given"
        raise UsageError(message, "Add KEY FORMAT … VALUE FORMAT …; KEY FORMAT BYTES takes them as they are.")
    for each in (options.key_format, options.values()):
        if isinstance(each, JsonOptions):
            _json_fits(each, kind in _DEBEZIUM)


def _json_fits(json: JsonOptions, by_debezium: bool) -> None:
    if json.schemas_enabled and not by_debezium:
        message = "SCHEMAS ENABLED is understood of what Debezium writes, and the envelope is another"
        raise UsageError(message, "Choose a DEBEZIUM envelope, or let the writer set schemas.enable=false.")
    if json.extra_fields is Extra.REFUSE and by_debezium:
        message = "EXTRA FIELDS cannot be refused of what Debezium writes: its records have more than is read here"
        raise UsageError(message, "Leave it out.")
