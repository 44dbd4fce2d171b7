"""The options of a Kafka source that stand before WITH: brokers, topic, formats, columns, envelope."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.sources.kafka.given import read_options
from penstock.sources.kafka.sense import given_of
from penstock.sources.kafka.with_options import KafkaWithOptions, RegistryOptions
from penstock.sources.kafka.words import Word
from penstock.sources.kafka.writing import EnvelopeText
from penstock.sources.name_syntax import Inclusion, Inclusions
from penstock.sources.option_syntax import Keyword

__all__ = [
    "Envelope",
    "EnvelopeKind",
    "KafkaSqlOptions",
    "MessageFormat",
    "Metadata",
    "refuse_strangers",
]

_BROKER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FROZEN = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class MessageFormat(Word):
    """How keys or values are written."""

    AVRO = "avro"
    """Avro, by a schema registry."""
    JSON = "json"
    """JSON."""
    PROTOBUF = "protobuf"
    """Protocol Buffers, by a schema registry."""
    CSV = "csv"
    """Values with commas between."""
    TEXT = "text"
    """One column of text, UTF-8."""
    BYTES = "bytes"
    """One column of bytes, as they are."""

    @property
    def needs_registry(self) -> bool:
        """Whether its schemas come from a registry."""
        return self in (MessageFormat.AVRO, MessageFormat.PROTOBUF)


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
    topic: str = Field(description="the topic")
    key_format: MessageFormat | None = Field(
        default=None, description="how keys are written; without it they are not read"
    )
    value_format: MessageFormat = Field(description="how values are written")
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

    @field_validator("topic")
    @classmethod
    def _a_topic(cls, name: str) -> str:
        return _checked_topic(name)

    @field_validator("schema_registry")
    @classmethod
    def _a_url(cls, url: str | None) -> str | None:
        return None if url is None else _checked_url(url)

    @model_validator(mode="after")
    def _together(self) -> Self:
        _one_name_each(self.include)
        _formats_have_schemas(self)
        _envelope_fits(self)
        return self


def refuse_strangers(what: KafkaSqlOptions, how: KafkaWithOptions) -> None:
    """Raise `UsageError` where the options before WITH and those after it do not go together."""
    if what.schema_registry is None and (given := given_of(how, RegistryOptions)):
        message = f"{given[0]} was given, and there is no schema registry"
        raise UsageError(message, "Say which: USING SCHEMA REGISTRY 'https://…'; or leave the option out.")
    https = what.schema_registry is not None and urlsplit(what.schema_registry).scheme == "https"
    if tls := [name for name in given_of(how, RegistryOptions) if "_ssl_" in name and not https]:
        message = f"{tls[0]} was given, and the schema registry's URL is not one of https"
        raise UsageError(message, "Write its URL with https://, or leave the option out.")
    if how.ignore_source_keys and what.envelope.kind in _BY_KEY:
        message = "ignore_source_keys was given, and this envelope finds rows by their keys"
        raise UsageError(message, "Leave it out, or choose ENVELOPE NONE or DEBEZIUM.")


_BY_KEY = (EnvelopeKind.UPSERT, EnvelopeKind.DEBEZIUM_UPSERT)
_DEBEZIUM = (EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT)


def _checked_topic(name: str) -> str:
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        message = f"{name!r} cannot be the name of a Kafka topic"
        raise UsageError(message, "Use letters, digits, dots, dashes and underscores; 249 at most.")
    return name


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
    formats = [f for f in (options.key_format, options.value_format) if f is not None]
    if options.schema_registry is None and (without := [f for f in formats if f.needs_registry]):
        message = f"the format {without[0].name} needs a schema registry"
        raise UsageError(message, "Say which: USING SCHEMA REGISTRY 'https://…'.")


def _envelope_fits(options: KafkaSqlOptions) -> None:
    kind, topic = options.envelope.kind, options.envelope.transaction_metadata_topic
    if kind in _BY_KEY and options.key_format is None:
        message = f"ENVELOPE {kind.value.upper()} finds rows by their keys, and the keys' format is not given"
        raise UsageError(message, "Add KEY FORMAT … VALUE FORMAT ….")
    if topic is not None and kind not in _DEBEZIUM:
        message = "transaction metadata is something that Debezium writes, and the envelope is another"
        raise UsageError(message, "Choose ENVELOPE DEBEZIUM, or leave TRANSACTION METADATA out.")
    if topic is not None and _checked_topic(topic) == options.topic:
        message = f"the topic {topic} cannot hold both messages and transaction metadata"
        raise UsageError(message, "Name the topic that Debezium writes its transactions to.")
    if any(column.what == Metadata.KEY for column in options.include) and options.key_format is None:
        message = "INCLUDE KEY was asked for, and the keys' format is not given"
        raise UsageError(message, "Add KEY FORMAT … VALUE FORMAT …; KEY FORMAT BYTES takes them as they are.")
