"""Validation of the options of a Kafka source: missing options, contradictions, and values that are rejected.

A rule is a condition on the options, and the message if it holds. Rules are tried in order, most explanatory first. No
rule reads a secret, only whether there is one. Missing secrets are checked separately and later: a secret that is
written in clear in SQL is taken out of the options until it has been stored.

`given` builds the model from options by name, and reports errors in Penstock's own words.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import UsageError
from penstock.sources.kafka.tls import KerberosOptions, Mechanism, SaslOptions, SslOptions

if TYPE_CHECKING:
    from penstock.sources.kafka.with_options import KafkaWithOptions


__all__ = ["REFUSED", "given_of", "read_options", "refuse_missing_secrets", "refuse_nonsense"]

REFUSED: dict[str, tuple[str, str]] = {
    "cache": (
        "there is no option cache of a Kafka source: what was read is always kept, in its tables",
        "Leave it out.",
    ),
    "enable_auto_commit": (
        "there is no option enable_auto_commit of a Kafka source: it goes on from the position that is stored with its "
        "output, and Spark's Kafka reader commits nothing",
        "Leave it out. How far a source is, `penstock status` says.",
    ),
}
"""Options of other systems, of the same name, that a Kafka source does not have: why, and what to do."""


def refuse_nonsense(options: KafkaWithOptions) -> None:
    """Raise `UsageError` for the first rule that the options break."""
    _refuse_literals(options)
    _refuse(options, _RULES)


def refuse_missing_secrets(options: KafkaWithOptions) -> None:
    """Raise `UsageError` where a secret is needed and not there."""
    _refuse(options, _SECRETS)


def _refuse(options: KafkaWithOptions, rules: Iterable[_Rule]) -> None:
    for broken, what, hint in rules:
        if broken(options):
            raise UsageError(what, hint)


def given_of(options: BaseModel, group: type[BaseModel], but: Iterable[type[BaseModel]] = ()) -> list[str]:
    """Return the options of a group that were given, less those of the groups in it that are named."""
    left_out = {name for inner in but for name in inner.model_fields}
    return [name for name in group.model_fields if name not in left_out and getattr(options, name) is not None]


def _refuse_literals(options: KafkaWithOptions) -> None:
    clear = [name for name, secret in options.secrets().items() if secret.is_sealed]
    if clear and not options.allow_literal_secrets:
        message = f"the option {clear[0]} was given in clear"
        hint = (
            "Name where it is instead: env:NAME (an environment variable) or file:PATH. Or set allow_literal_secrets:"
            " then it is kept in a file that none but this user reads."
        )
        raise UsageError(message, hint)


def _has_login(options: KafkaWithOptions) -> bool:
    return options.sasl_username is not None or options.sasl_password is not None


def _with_password(options: KafkaWithOptions) -> bool:
    return options.sasl_mechanisms is not None and options.sasl_mechanisms.has_password


def _login_without_sasl(options: KafkaWithOptions) -> bool:
    given = given_of(options, SaslOptions)
    return bool(given) and options.security_protocol is not None and not options.security_protocol.has_login


def _tls_without_tls(options: KafkaWithOptions) -> bool:
    return bool(given_of(options, SslOptions)) and not options.protocol().has_tls


def _no_mechanism(options: KafkaWithOptions) -> bool:
    wanted = options.protocol().has_login or bool(given_of(options, SaslOptions))
    return wanted and options.sasl_mechanisms is None


def _half_a_certificate(options: KafkaWithOptions) -> bool:
    return (options.ssl_certificate_location is None) != (options.ssl_key_location is None)


def _half_a_registry_certificate(options: KafkaWithOptions) -> bool:
    both = options.schema_registry_ssl_certificate_location, options.schema_registry_ssl_key_location
    return (both[0] is None) != (both[1] is None)


def _several_starts(options: KafkaWithOptions) -> bool:
    starts = options.start_offset, options.start_timestamp, options.kafka_time_offset
    return sum(start is not None for start in starts) > 1


_Rule = tuple[Callable[["KafkaWithOptions"], bool], str, str]
_RULES: tuple[_Rule, ...] = (
    (
        _login_without_sasl,
        "sasl options were given, and a security_protocol that has no login",
        "Set security_protocol to SASL_SSL (or SASL_PLAINTEXT), or leave the sasl options out.",
    ),
    (
        _tls_without_tls,
        "ssl options were given, and a security_protocol without TLS",
        "Set security_protocol to SSL or SASL_SSL, or leave the ssl options out.",
    ),
    (
        _no_mechanism,
        "a login is asked for, and sasl_mechanisms does not say how it is made",
        f"Set sasl_mechanisms to one of {', '.join(Mechanism)}.",
    ),
    (
        lambda o: _with_password(o) and o.sasl_username is None,
        "this mechanism needs a user and a password, and the user is missing",
        "Set both sasl_username and sasl_password.",
    ),
    (
        lambda o: o.sasl_mechanisms is Mechanism.GSSAPI and _has_login(o),
        "Kerberos (GSSAPI) takes no sasl_username and no sasl_password",
        "Leave them out and give sasl_kerberos_principal and sasl_kerberos_keytab, or choose another mechanism.",
    ),
    (
        lambda o: o.sasl_mechanisms is not Mechanism.GSSAPI and bool(given_of(o, KerberosOptions)),
        "options of Kerberos were given with another mechanism",
        "Set sasl_mechanisms to GSSAPI, or leave the sasl_kerberos options out.",
    ),
    (
        lambda o: o.sasl_kerberos_keytab is not None and o.sasl_kerberos_principal is None,
        "a keytab was given without the principal whose keys it holds",
        "Set sasl_kerberos_principal.",
    ),
    (
        _half_a_certificate,
        "a client certificate needs its private key, and a key its certificate",
        "Set both ssl_certificate_location and ssl_key_location.",
    ),
    (
        lambda o: o.ssl_key_password is not None and o.ssl_key_location is None,
        "ssl_key_password was given without the private key that it unlocks",
        "Set ssl_key_location and ssl_certificate_location, or leave it out.",
    ),
    (
        lambda o: o.schema_registry_password is not None and o.schema_registry_username is None,
        "a login to the schema registry needs a user and a password, and the user is missing",
        "Set both schema_registry_username and schema_registry_password.",
    ),
    (
        _half_a_registry_certificate,
        "a certificate for the schema registry needs its private key, and a key its certificate",
        "Set both schema_registry_ssl_certificate_location and schema_registry_ssl_key_location.",
    ),
    (
        lambda o: o.schema_registry_ssl_key_password is not None and o.schema_registry_ssl_key_location is None,
        "schema_registry_ssl_key_password was given without the private key that it unlocks",
        "Set schema_registry_ssl_key_location, or leave it out.",
    ),
    (
        _several_starts,
        "more than one option says where reading begins",
        "Give one of start_offset, start_timestamp and kafka_time_offset.",
    ),
    (
        lambda o: o.quarantine_limit is not None and o.on_error != "quarantine",
        "quarantine_limit was given, and messages are not put aside",
        "Set on_error to quarantine, or leave quarantine_limit out.",
    ),
)
_SECRETS: tuple[_Rule, ...] = (
    (
        lambda o: _with_password(o) and o.sasl_password is None,
        "this mechanism needs a user and a password, and the password is missing",
        "Set both sasl_username and sasl_password.",
    ),
    (
        lambda o: o.schema_registry_username is not None and o.schema_registry_password is None,
        "a login to the schema registry needs a user and a password, and the password is missing",
        "Set both schema_registry_username and schema_registry_password.",
    ),
)


_Options = TypeVar("_Options", bound=BaseModel)


def read_options(
    model: type[_Options], owner: str, given: Mapping[str, Any], refused: Mapping[str, tuple[str, str]]
) -> _Options:
    """Return the options; `refused` are those that are known elsewhere and not here, each with why and what instead."""
    for name in given:
        if name in refused:
            raise UsageError(*refused[name])
        if name not in model.model_fields:
            message = f"there is no option {name} of {owner}"
            raise UsageError(message, _nearest(name, model) or "See the reference of its options.")
    try:
        return model.model_validate(dict(given))
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False, include_context=False)[0]
        option = str(first["loc"][0]) if first["loc"] else owner
        message = f"the option {option}: {first['msg']}"
        raise UsageError(message, "See the reference of its options.") from None


def _nearest(wanted: str, model: type[BaseModel]) -> str:
    found = difflib.get_close_matches(wanted, list(model.model_fields), 1)
    return f"Did you mean {found[0]}?" if found else ""
