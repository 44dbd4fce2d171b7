"""The options of a Kafka source that stand after WITH: how its brokers are reached, and how its topic is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.positions import parse_as_of
from penstock.sources.kafka.option_syntax import Offsets, Word
from penstock.sources.kafka.secrets import Keep, Secret, SecretOption
from penstock.sources.kafka.tls import Mechanism, PathText, SaslOptions, SecurityProtocol, SslOptions
from penstock.sources.kafka.validation import REFUSED, given_of, read_options, refuse_missing_secrets, refuse_nonsense

__all__ = ["Beginning", "IsolationLevel", "KafkaWithOptions", "OnError", "RegistryOptions", "TimestampType"]


class Beginning(Word):
    """Where reading begins, in all partitions."""

    EARLIEST = "earliest"
    """At the first message that the topic still has."""
    LATEST = "latest"
    """After the last message that it has at that moment."""


class IsolationLevel(Word):
    """Which messages of producers' transactions are read."""

    READ_COMMITTED = "read_committed"
    """Those of transactions that committed, in the order of the topic."""
    READ_UNCOMMITTED = "read_uncommitted"
    """All of them, also those of transactions that were aborted."""


class TimestampType(Word):
    """Whose clock says when a message was."""

    RECORD = "record"
    """The clock of its producer, as far as the topic keeps what that said."""
    BROKER = "broker"
    """The clock of the broker. The topic must have `message.timestamp.type=LogAppendTime`."""


class OnError(Word):
    """What happens at a message that cannot be decoded."""

    STOP = "stop"
    """The source stops before it, with an error."""
    QUARANTINE = "quarantine"
    """It is put aside, with the reason, and the source goes on."""


class RegistryOptions(BaseModel):
    """How a schema registry is reached. The brokers' options are not used for it."""

    schema_registry_username: str | None = Field(default=None, min_length=1, description="the registry's user")
    schema_registry_password: SecretOption = Field(
        default=None, description="where the registry's password is: env:NAME or file:PATH"
    )
    schema_registry_ssl_ca_location: PathText = Field(
        default=None, description="file of certificates (PEM) of authorities to trust with the registry"
    )
    schema_registry_ssl_certificate_location: PathText = Field(
        default=None, description="file of the certificate (PEM) to show to the registry"
    )
    schema_registry_ssl_key_location: PathText = Field(
        default=None, description="file of that certificate's private key (PEM)"
    )
    schema_registry_ssl_key_password: SecretOption = Field(
        default=None, description="what unlocks that private key: env:NAME or file:PATH"
    )


class KafkaWithOptions(RegistryOptions, SaslOptions, SslOptions):
    """What one may ask of a Kafka source beyond brokers, topic, format and envelope."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "a Kafka source"

    security_protocol: SecurityProtocol | None = Field(
        default=None,
        description="how brokers are spoken to; without it SASL_SSL where there is a login, SSL where there are only "
        "ssl options, else PLAINTEXT",
    )
    allow_literal_secrets: bool = Field(
        default=False, description="whether secrets may be given in clear; they are kept in private files"
    )
    client_id: str = Field(
        default="penstock", pattern=r"^[A-Za-z0-9._-]{1,200}$", description="by what name brokers know the client"
    )
    group_id_prefix: str = Field(
        default="penstock-", pattern=r"^[A-Za-z0-9._-]{1,200}$", description="what names of consumer groups begin with"
    )
    start_offset: Annotated[Beginning | tuple[int, ...] | None, Offsets()] = Field(
        default=None,
        description="where reading begins: earliest (the default), latest, or an offset for each partition from 0 on; "
        "partitions without one begin with their first message",
    )
    start_timestamp: str | None = Field(
        default=None, description="begin with the first messages of this moment or later, like 2026-11-16T03:00:00Z"
    )
    kafka_time_offset: int | None = Field(
        default=None, description="the same in milliseconds since 1970; or, where negative, as long before now"
    )
    isolation_level: IsolationLevel = Field(
        default=IsolationLevel.READ_COMMITTED, description="which messages of transactions are read"
    )
    statistics_interval_ms: int = Field(
        default=0,
        ge=0,
        le=86_400_000,
        description="milliseconds between the client's statistics, of which the last are in "
        "state/SOURCE/statistics.json of the home; 0 for none",
    )
    topic_metadata_refresh_interval_ms: int = Field(
        default=300_000, ge=10, le=3_600_000, description="milliseconds between looks for new partitions and leaders"
    )
    timestamp_frequency_ms: int = Field(
        default=1000, ge=10, le=3_600_000, description="milliseconds between looks for how far the topic goes"
    )
    timestamp_type: TimestampType = Field(
        default=TimestampType.RECORD, description="whose clock says when a message was"
    )
    ignore_source_keys: bool = Field(
        default=False, description="whether the table has no key although its messages have one"
    )
    on_error: OnError = Field(default=OnError.STOP, description="what happens at a message that cannot be decoded")
    quarantine_limit: int | None = Field(
        default=None,
        ge=1,
        description="how many messages are put aside before the source stops; without it, any number",
    )

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Read options by name; what is unknown, refused or makes no sense is a `UsageError`."""
        read = read_options(cls, cls.NAME, options, REFUSED)
        read.require_secrets()
        return read

    @field_validator("sasl_mechanisms", mode="before")
    @classmethod
    def _refused_mechanism(cls, mechanism: object) -> object:
        if isinstance(mechanism, str) and mechanism.upper() == "OAUTHBEARER":
            message = "the mechanism OAUTHBEARER is not supported: its tokens expire, and come from a call of a program"
            raise UsageError(message, f"Use {', '.join(Mechanism)}, or a client certificate (security_protocol SSL).")
        return mechanism

    @field_validator("start_offset", mode="before")
    @classmethod
    def _one_offset(cls, given: object) -> object:
        return (given,) if isinstance(given, int) and not isinstance(given, bool) else given

    @field_validator("start_offset")
    @classmethod
    def _not_negative(cls, start: Beginning | tuple[int, ...] | None) -> Beginning | tuple[int, ...] | None:
        if isinstance(start, tuple) and (not start or min(start) < 0 or max(start) >= 1 << 63):
            message = "an offset in start_offset is negative or too large, or there is none"
            raise UsageError(message, "Give an offset from 0 on for each partition, or earliest, or latest.")
        return start

    @field_validator("start_timestamp")
    @classmethod
    def _a_moment(cls, text: str | None) -> str | None:
        return None if text is None else _moment(text)

    @model_validator(mode="after")
    def _settings_together(self) -> Self:
        refuse_nonsense(self)
        return self

    def secrets(self) -> dict[str, Secret]:
        """Return the secrets that were given, by option."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in named.items() if isinstance(value, Secret)}

    def require_secrets(self) -> None:
        """Refuse a login without its password. Do this when all secrets should be there; a client's settings do."""
        refuse_missing_secrets(self)

    def kept(self, keep: Keep) -> Self:
        """Return the same options with references in the place of literals, which `keep` is handed."""
        return with_fields(self, **{name: secret.kept(name, keep) for name, secret in self.secrets().items()})

    def protocol(self) -> SecurityProtocol:
        """Return how brokers are spoken to, also where it was not said."""
        if self.security_protocol is not None:
            return self.security_protocol
        if self.sasl_mechanisms is not None:
            return SecurityProtocol.SASL_SSL
        return SecurityProtocol.SSL if given_of(self, SslOptions) else SecurityProtocol.PLAINTEXT

    def kerberos_service(self) -> str:
        """Return the name that brokers run under, also where it was not said."""
        return self.sasl_kerberos_service_name or "kafka"


def _moment(text: str) -> str:
    read = parse_as_of(text)
    if not isinstance(read, datetime):
        message = f"{text!r} is not a moment"
        raise UsageError(message, "Write it like 2026-11-16T03:00:00Z.")
    return read.astimezone(UTC).isoformat()
