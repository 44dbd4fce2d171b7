"""The options as settings of librdkafka: for the client that looks at topics."""

from __future__ import annotations

from penstock.sources.kafka.security import Mechanism
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.translation import TRANSLATIONS, word_for_word
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["librdkafka_settings"]

_LOCATIONS = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")
_KERBEROS = ("sasl_kerberos_principal", "sasl_kerberos_keytab", "sasl_kerberos_kinit_cmd")
_SECRETS = ("ssl_key_password", "sasl_password")
_FIXED = {"enable.auto.commit": "false", "enable.auto.offset.store": "false", "auto.offset.reset": "error"}
"""Positions are ours: nothing is committed, and an offset that is gone is an error instead of another one."""


def librdkafka_settings(what: KafkaSqlOptions, how: KafkaWithOptions, source: str) -> dict[str, str]:
    """Return the settings of a consumer, secrets in clear: for a client alone, right before it is made."""
    how.require_secrets()
    as_they_are = ("sasl_username", *_LOCATIONS, *_KERBEROS)
    settings = {_name(option): getattr(how, option) for option in as_they_are}
    settings |= {_name(option): how.secrets()[option].resolved() for option in _SECRETS if option in how.secrets()}
    return {
        "bootstrap.servers": what.broker,
        "security.protocol": how.protocol().value,
        "group.id": f"{how.group_id_prefix}{source}",
        **dict(word_for_word(how, "librdkafka")),
        **_kerberos_service(how),
        **{name: value for name, value in settings.items() if value is not None},
        **_FIXED,
    }


def _kerberos_service(how: KafkaWithOptions) -> dict[str, str]:
    if how.sasl_mechanisms is not Mechanism.GSSAPI:
        return {}
    return {_name("sasl_kerberos_service_name"): how.kerberos_service()}


def _name(option: str) -> str:
    name = TRANSLATIONS[option].librdkafka
    assert name is not None
    return name
