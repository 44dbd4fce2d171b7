"""Options for the connection to Kafka brokers and to a schema registry, which sources and sinks share.

Validation rules are at the end: a rule is a condition on the options, and the message if it holds. Rules are tried in
order, most specific first. No rule reads a secret, only whether there is one. Missing secrets are checked separately
and later: a literal secret in SQL is removed from the options until it has been stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.kafka_client.option_values import given_of
from penstock.kafka_client.secrets import Keep, Secret, SecretOption
from penstock.kafka_client.tls import (
    OAUTHBEARER,
    KerberosOptions,
    Mechanism,
    PathText,
    SaslOptions,
    SecurityProtocol,
    SslOptions,
)
from penstock.sql.syntax.values import alternatives

__all__ = [
    "ConnectionOptions",
    "RegistryOptions",
    "Rule",
    "apply_rules",
    "checked_brokers",
    "checked_topic",
    "checked_url",
    "validate_registry_options",
]

_BROKER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


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


class ConnectionOptions(RegistryOptions, SaslOptions, SslOptions):
    """How to connect to brokers and to a schema registry."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

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

    @field_validator("sasl_mechanisms", mode="before")
    @classmethod
    def _refused_mechanism(cls, mechanism: object) -> object:
        if isinstance(mechanism, str) and mechanism.upper() == OAUTHBEARER:
            why = "its tokens expire, and require a callback"
            message = f'value "OAUTHBEARER" is not supported for option "sasl_mechanisms": {why}'
            instead = 'or a client certificate (option "security_protocol" SSL)'
            raise UsageError(message, f"Use {alternatives(Mechanism)}, {instead}.")
        return mechanism

    @model_validator(mode="after")
    def _connection_together(self) -> Self:
        _reject_literals(self)
        apply_rules(self, _RULES)
        return self

    def secrets(self) -> dict[str, Secret]:
        """Return the secrets that are set, by option."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in named.items() if isinstance(value, Secret)}

    def require_secrets(self) -> None:
        """Raise `UsageError` for a login without a password. Call it when all secrets must be present."""
        apply_rules(self, _SECRETS)

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


def checked_brokers(text: str) -> str:
    """Return a list of brokers without spaces; raise `UsageError` if one is invalid."""
    brokers = [broker.strip() for broker in text.split(",")]
    if wrong := [broker for broker in brokers if not _BROKER.fullmatch(broker)]:
        message = f'invalid broker "{wrong[0]}"' if "@" not in wrong[0] else "a broker contains a user or password"
        raise UsageError(message, "Use host:port, separated by commas, such as k1:9092,k2:9092.")
    return ",".join(brokers)


def checked_topic(name: str) -> str:
    """Return the name of a topic; raise `UsageError` if it is invalid."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        message = f'invalid topic name "{name}"'
        raise UsageError(message, "Use at most 249 letters, digits, dots, dashes and underscores.")
    return name


def checked_url(url: str) -> str:
    """Reject an invalid URL, or one with a user or password; the message omits the URL, as it may contain one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        message = "invalid URL of the schema registry"
        raise UsageError(message, "Use a URL with http:// or https://, such as https://registry:8081.")
    if "@" in parts.netloc:
        message = "the URL of the schema registry contains a user or password"
        raise UsageError(message, 'Use options "schema_registry_username" and "schema_registry_password" instead.')
    return url


def validate_registry_options(url: str | None, how: RegistryOptions) -> None:
    """Raise `UsageError` for an option of the schema registry that its URL, or its absence, makes useless."""
    if url is None and (given := given_of(how, RegistryOptions)):
        message = f'option "{given[0]}" requires a schema registry'
        raise UsageError(message, "Add USING SCHEMA REGISTRY 'https://…', or remove the option.")
    https = url is not None and urlsplit(url).scheme == "https"
    if tls := [name for name in given_of(how, RegistryOptions) if "_ssl_" in name and not https]:
        message = f'option "{tls[0]}" requires an https URL of the schema registry'
        raise UsageError(message, "Use a URL with https://, or remove the option.")


def apply_rules(options: BaseModel, rules: Iterable[Rule]) -> None:
    """Raise `UsageError` for the first rule that the options violate."""
    for broken, what, hint in rules:
        if found := broken(options):
            raise UsageError(what.format(option=found, how=options), hint)


def _reject_literals(options: ConnectionOptions) -> None:
    clear = [name for name, secret in options.secrets().items() if secret.is_sealed]
    if clear and not options.allow_literal_secrets:
        message = f'option "{clear[0]}" contains a literal secret'
        hint = (
            'Use a reference: env:NAME (an environment variable) or file:PATH. Or set option "allow_literal_secrets"'
            " to store it in a file that only this user can read."
        )
        raise UsageError(message, hint)


def _login_option(options: ConnectionOptions) -> str:
    """Return the first option of a login with a password that is set."""
    return next((name for name in ("sasl_username", "sasl_password") if getattr(options, name) is not None), "")


def _with_password(options: ConnectionOptions) -> bool:
    return options.sasl_mechanisms is not None and options.sasl_mechanisms.has_password


def _login_without_sasl(options: ConnectionOptions) -> str:
    has_login = options.security_protocol is None or options.security_protocol.has_login
    return "" if has_login else _first_of(options, SaslOptions)


def _tls_without_tls(options: ConnectionOptions) -> str:
    return "" if options.protocol().has_tls else _first_of(options, SslOptions)


def _first_of(options: ConnectionOptions, group: type[BaseModel]) -> str:
    """Return the first option of a group that is set, or an empty string."""
    return next(iter(given_of(options, group)), "")


def _no_mechanism(options: ConnectionOptions) -> bool:
    wanted = options.protocol().has_login or bool(given_of(options, SaslOptions))
    return wanted and options.sasl_mechanisms is None


Rule = tuple[Callable[[Any], bool | str], str, str]
"""A condition, the message and the hint. The condition may return the option at fault, for the message."""


def _requires(option: str, other: str) -> Rule:
    """Return the rule that an option requires another one."""
    return (
        lambda o: getattr(o, option) is not None and getattr(o, other) is None,
        f'option "{option}" requires option "{other}"',
        f'Set option "{other}" as well, or remove option "{option}".',
    )


_RULES: tuple[Rule, ...] = (
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
)


_SECRETS: tuple[Rule, ...] = (
    (
        lambda o: _with_password(o) and o.sasl_password is None,
        'mechanism "{how.sasl_mechanisms}" requires option "sasl_password"',
        'Set options "sasl_username" and "sasl_password".',
    ),
    _requires("schema_registry_username", "schema_registry_password"),
)
