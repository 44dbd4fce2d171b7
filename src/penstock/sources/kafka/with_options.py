"""The options of a Kafka source after WITH: how to connect to brokers, and how to read topics.

Validation rules are at the end: a rule is a condition on the options, and the message if it holds. Rules are tried in
order, most specific first. No rule reads a secret, only whether there is one. Missing secrets are checked separately
and later: a literal secret in SQL is removed from the options until it has been stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.sources.kafka.option_syntax import UNSUPPORTED, Offsets, Word, given_of, read_options
from penstock.sources.kafka.secrets import Keep, Secret, SecretOption
from penstock.sources.kafka.tls import (
    OAUTHBEARER,
    KerberosOptions,
    Mechanism,
    PathText,
    SaslOptions,
    SecurityProtocol,
    SslOptions,
)
from penstock.sql.syntax.values import alternatives

__all__ = ["IsolationLevel", "KafkaWithOptions", "OnError", "RegistryOptions", "StartPoint", "TimestampType"]

_REMOVED = "ignore_source_keys"
_LAST_OFFSET = (1 << 63) - 1


class StartPoint(Word):
    """Where reading starts, in all partitions."""

    EARLIEST = "earliest"
    """At the first available message."""
    LATEST = "latest"
    """After the last message at the time the source is created."""


class IsolationLevel(Word):
    """Which messages of producer transactions are read."""

    READ_COMMITTED = "read_committed"
    """Those of committed transactions, in topic order."""
    READ_UNCOMMITTED = "read_uncommitted"
    """All messages, including those of aborted transactions."""


class TimestampType(Word):
    """The clock of message timestamps."""

    RECORD = "record"
    """The timestamp of the producer, unless the topic replaces it."""
    BROKER = "broker"
    """The clock of the broker. The topic must have `message.timestamp.type=LogAppendTime`."""


class OnError(Word):
    """Handling of a message that cannot be decoded."""

    STOP = "stop"
    """The table stops before the message, with an error."""
    QUARANTINE = "quarantine"
    """The message is quarantined, with the reason, and the table continues."""


class RegistryOptions(BaseModel):
    """How to connect to a schema registry. Options of the brokers do not apply to it."""

    schema_registry_username: str | None = Field(default=None, min_length=1, description="user of the registry")
    schema_registry_password: SecretOption = Field(
        default=None, description="password of the registry: env:NAME or file:PATH"
    )
    schema_registry_ssl_ca_location: PathText = Field(
        default=None, description="PEM file of CA certificates to trust for the registry"
    )
    schema_registry_ssl_certificate_location: PathText = Field(
        default=None, description="PEM file of the client certificate for the registry"
    )
    schema_registry_ssl_key_location: PathText = Field(
        default=None, description="PEM file of the private key of that certificate"
    )
    schema_registry_ssl_key_password: SecretOption = Field(
        default=None, description="password of that private key: env:NAME or file:PATH"
    )


class KafkaWithOptions(RegistryOptions, SaslOptions, SslOptions):
    """Options of a Kafka source other than brokers, topics, formats and envelope."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "a Kafka source"

    security_protocol: SecurityProtocol | None = Field(
        default=None,
        description="protocol of the brokers; default SASL_SSL with a login, SSL with only ssl options, otherwise "
        "PLAINTEXT",
    )
    allow_literal_secrets: bool = Field(
        default=False, description="whether secrets may be literals; they are stored in private files"
    )
    client_id: str = Field(
        default="penstock", pattern=r"^[A-Za-z0-9._-]{1,200}$", description="client id reported to brokers"
    )
    group_id_prefix: str = Field(
        default="penstock-", pattern=r"^[A-Za-z0-9._-]{1,200}$", description="prefix of consumer group names"
    )
    start_offset: Annotated[StartPoint | tuple[int, ...] | None, Offsets()] = Field(
        default=None,
        description="where reading starts: earliest (the default), latest, or an offset for each partition from "
        "partition 0 on; partitions without one start with their first message",
    )
    start_timestamp: str | None = Field(
        default=None, description="start with the first message at or after this time, such as 2026-11-16T03:00:00Z"
    )
    kafka_time_offset: int | None = Field(
        default=None, description="the same in milliseconds since 1970; if negative, relative to now"
    )
    isolation_level: IsolationLevel = Field(
        default=IsolationLevel.READ_COMMITTED, description="which messages of producer transactions are read"
    )
    statistics_interval_ms: int = Field(
        default=0,
        ge=0,
        le=86_400_000,
        description="interval of client statistics in milliseconds; the latest are in "
        "state/SOURCE/statistics.json of the home; 0 disables them",
    )
    topic_metadata_refresh_interval_ms: int = Field(
        default=300_000, ge=10, le=3_600_000, description="interval of metadata refreshes in milliseconds"
    )
    timestamp_frequency_ms: int = Field(
        default=1000, ge=10, le=3_600_000, description="interval of polls for new messages in milliseconds"
    )
    timestamp_type: TimestampType = Field(default=TimestampType.RECORD, description="clock of message timestamps")
    on_error: OnError = Field(default=OnError.STOP, description="handling of a message that cannot be decoded")
    quarantine_limit: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of quarantined messages of a table; beyond it, the table stops; default: no limit",
    )

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Parse options by name; raise `UsageError` if one is unknown, unsupported or invalid."""
        read = read_options(cls, cls.NAME, options, UNSUPPORTED)
        read.require_secrets()
        return read

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_home(cls, given: Any) -> Any:
        """Drop an option that no longer exists; the catalogs of earlier homes contain it, always as false."""
        if isinstance(given, dict) and given.get(_REMOVED) is False:
            return {option: value for option, value in given.items() if option != _REMOVED}
        return given

    @field_validator("sasl_mechanisms", mode="before")
    @classmethod
    def _refused_mechanism(cls, mechanism: object) -> object:
        if isinstance(mechanism, str) and mechanism.upper() == OAUTHBEARER:
            why = "its tokens expire, and require a callback"
            message = f'value "OAUTHBEARER" is not supported for option "sasl_mechanisms": {why}'
            instead = 'or a client certificate (option "security_protocol" SSL)'
            raise UsageError(message, f"Use {alternatives(Mechanism)}, {instead}.")
        return mechanism

    @field_validator("start_offset", mode="before")
    @classmethod
    def _one_offset(cls, given: object) -> object:
        return (given,) if isinstance(given, int) and not isinstance(given, bool) else given

    @field_validator("start_offset")
    @classmethod
    def _not_negative(cls, start: StartPoint | tuple[int, ...] | None) -> StartPoint | tuple[int, ...] | None:
        if isinstance(start, tuple):
            _check_offsets(start)
        return start

    @field_validator("start_timestamp")
    @classmethod
    def _a_moment(cls, text: str | None) -> str | None:
        return None if text is None else _moment(text)

    @model_validator(mode="after")
    def _settings_together(self) -> Self:
        _validate(self)
        return self

    def secrets(self) -> dict[str, Secret]:
        """Return the secrets that are set, by option."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in named.items() if isinstance(value, Secret)}

    def require_secrets(self) -> None:
        """Raise `UsageError` for a login without a password. Call it when all secrets must be present."""
        _apply_rules(self, _SECRETS)

    def kept(self, keep: Keep) -> Self:
        """Return the options with references instead of literals, which `keep` stores."""
        return with_fields(self, **{name: secret.kept(name, keep) for name, secret in self.secrets().items()})

    def protocol(self) -> SecurityProtocol:
        """Return the security protocol, or its default."""
        if self.security_protocol is not None:
            return self.security_protocol
        if self.sasl_mechanisms is not None:
            return SecurityProtocol.SASL_SSL
        return SecurityProtocol.SSL if given_of(self, SslOptions) else SecurityProtocol.PLAINTEXT

    def kerberos_service(self) -> str:
        """Return the Kerberos service name of the brokers, or its default."""
        return self.sasl_kerberos_service_name or "kafka"


def _check_offsets(offsets: tuple[int, ...]) -> None:
    hint = f"Use {{ earliest | latest }}, or an offset for each partition, between 0 and {_LAST_OFFSET}."
    if not offsets:
        message = 'option "start_offset" has no offsets'
        raise UsageError(message, hint)
    if wrong := [offset for offset in offsets if not 0 <= offset <= _LAST_OFFSET]:
        message = f'value {wrong[0]} is out of bounds for option "start_offset"'
        raise UsageError(message, hint)


def _moment(text: str) -> str:
    """Return a timestamp in UTC; reject one without a time zone, whose meaning would depend on the machine."""
    try:
        read = datetime.fromisoformat(text.strip())
        moment = read.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        message = f'invalid value for option "start_timestamp": "{text}"'
        raise UsageError(message, "Use a timestamp with a time zone, such as 2026-11-16T03:00:00Z.") from None
    if read.utcoffset() is None:
        message = f'invalid value for option "start_timestamp": "{text}" has no time zone'
        zoned = read.isoformat()
        raise UsageError(message, f"Add the time zone: {zoned}Z for UTC, or {zoned}+02:00.")
    return moment


def _validate(options: KafkaWithOptions) -> None:
    """Raise `UsageError` for the first rule that the options violate."""
    _reject_literals(options)
    _apply_rules(options, _RULES)


def _apply_rules(options: KafkaWithOptions, rules: Iterable[_Rule]) -> None:
    for broken, what, hint in rules:
        if found := broken(options):
            raise UsageError(what.format(option=found, how=options), hint)


def _reject_literals(options: KafkaWithOptions) -> None:
    clear = [name for name, secret in options.secrets().items() if secret.is_sealed]
    if clear and not options.allow_literal_secrets:
        message = f'option "{clear[0]}" contains a literal secret'
        hint = (
            'Use a reference: env:NAME (an environment variable) or file:PATH. Or set option "allow_literal_secrets"'
            " to store it in a file that only this user can read."
        )
        raise UsageError(message, hint)


def _login_option(options: KafkaWithOptions) -> str:
    """Return the first option of a login with a password that is set."""
    return next((name for name in ("sasl_username", "sasl_password") if getattr(options, name) is not None), "")


def _with_password(options: KafkaWithOptions) -> bool:
    return options.sasl_mechanisms is not None and options.sasl_mechanisms.has_password


def _login_without_sasl(options: KafkaWithOptions) -> str:
    has_login = options.security_protocol is None or options.security_protocol.has_login
    return "" if has_login else _first_of(options, SaslOptions)


def _tls_without_tls(options: KafkaWithOptions) -> str:
    return "" if options.protocol().has_tls else _first_of(options, SslOptions)


def _first_of(options: KafkaWithOptions, group: type[BaseModel]) -> str:
    """Return the first option of a group that is set, or an empty string."""
    return next(iter(given_of(options, group)), "")


def _no_mechanism(options: KafkaWithOptions) -> bool:
    wanted = options.protocol().has_login or bool(given_of(options, SaslOptions))
    return wanted and options.sasl_mechanisms is None


def _several_starts(options: KafkaWithOptions) -> bool:
    starts = options.start_offset, options.start_timestamp, options.kafka_time_offset
    return sum(start is not None for start in starts) > 1


_Rule = tuple[Callable[[KafkaWithOptions], bool | str], str, str]
"""A condition, the message and the hint. The condition may return the option at fault, for the message."""


def _requires(option: str, other: str) -> _Rule:
    """Return the rule that an option requires another one."""
    return (
        lambda o: getattr(o, option) is not None and getattr(o, other) is None,
        f'option "{option}" requires option "{other}"',
        f'Set option "{other}" as well, or remove option "{option}".',
    )


_RULES: tuple[_Rule, ...] = (
    (
        _login_without_sasl,
        'option "{option}" requires a security protocol with a login, not "{how.security_protocol}"',
        'Set option "security_protocol" to { SASL_SSL | SASL_PLAINTEXT }, or remove the sasl options.',
    ),
    (
        _tls_without_tls,
        'option "{option}" requires a security protocol with TLS, not "{how.security_protocol}"',
        'Set option "security_protocol" to { SSL | SASL_SSL }, or remove the ssl options.',
    ),
    (
        _no_mechanism,
        'a login requires option "sasl_mechanisms"',
        f'Set option "sasl_mechanisms" to {alternatives(Mechanism)}.',
    ),
    (
        lambda o: _with_password(o) and o.sasl_username is None,
        'mechanism "{how.sasl_mechanisms}" requires option "sasl_username"',
        'Set options "sasl_username" and "sasl_password".',
    ),
    (
        lambda o: o.sasl_mechanisms is Mechanism.GSSAPI and _login_option(o),
        'option "{option}" is invalid with mechanism "GSSAPI"',
        'Use options "sasl_kerberos_principal" and "sasl_kerberos_keytab" instead, or another mechanism.',
    ),
    (
        lambda o: o.sasl_mechanisms is not Mechanism.GSSAPI and _first_of(o, KerberosOptions),
        'option "{option}" requires mechanism "GSSAPI"',
        'Set option "sasl_mechanisms" to GSSAPI, or remove the sasl kerberos options.',
    ),
    _requires("sasl_kerberos_keytab", "sasl_kerberos_principal"),
    _requires("ssl_certificate_location", "ssl_key_location"),
    _requires("ssl_key_location", "ssl_certificate_location"),
    _requires("ssl_key_password", "ssl_key_location"),
    _requires("schema_registry_password", "schema_registry_username"),
    _requires("schema_registry_ssl_certificate_location", "schema_registry_ssl_key_location"),
    _requires("schema_registry_ssl_key_location", "schema_registry_ssl_certificate_location"),
    _requires("schema_registry_ssl_key_password", "schema_registry_ssl_key_location"),
    (
        _several_starts,
        'options "start_offset", "start_timestamp" and "kafka_time_offset" are mutually exclusive',
        "Use only one of them.",
    ),
    (
        lambda o: o.quarantine_limit is not None and o.on_error is not OnError.QUARANTINE,
        'option "quarantine_limit" requires option "on_error" to be "quarantine"',
        'Set option "on_error" to quarantine, or remove option "quarantine_limit".',
    ),
)


_SECRETS: tuple[_Rule, ...] = (
    (
        lambda o: _with_password(o) and o.sasl_password is None,
        'mechanism "{how.sasl_mechanisms}" requires option "sasl_password"',
        'Set options "sasl_username" and "sasl_password".',
    ),
    _requires("schema_registry_username", "schema_registry_password"),
)
