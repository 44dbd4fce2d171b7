"""What each option is called by the two clients that read Kafka, or why one of them has no word for it.

librdkafka (in Python) looks at topics; Spark's reader, which has Kafka's Java client, reads them. Options that stand in
neither are read by the source itself. The reference page shows this table, and a test holds both translations to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from penstock.sources.kafka.words import Word

__all__ = ["TRANSLATIONS", "Names", "spelled", "word_for_word"]


@dataclass(frozen=True)
class Names:
    """An option's name to librdkafka and to Spark; whether its value is the same there; why a name is missing."""

    librdkafka: str | None = None
    spark: str | None = None
    verbatim: bool = False
    reason: str = ""


_SOURCE = "Read by the source itself."
_REGISTRY = "Read where schemas are fetched."
_OWN_STATISTICS = "Spark's client tells its statistics through JMX, and the query's progress."
_OWN_LOGIN = "Spark's client logs in by itself, with the keytab or with a ticket that is there."
_JAAS = "kafka.sasl.jaas.config"

TRANSLATIONS: dict[str, Names] = {
    "security_protocol": Names("security.protocol", "kafka.security.protocol"),
    "ssl_ca_location": Names("ssl.ca.location", "kafka.ssl.truststore.certificates"),
    "ssl_certificate_location": Names("ssl.certificate.location", "kafka.ssl.keystore.certificate.chain"),
    "ssl_key_location": Names("ssl.key.location", "kafka.ssl.keystore.key"),
    "ssl_key_password": Names("ssl.key.password", "kafka.ssl.key.password"),
    "sasl_mechanisms": Names("sasl.mechanisms", "kafka.sasl.mechanism", verbatim=True),
    "sasl_username": Names("sasl.username", _JAAS),
    "sasl_password": Names("sasl.password", _JAAS),
    "sasl_kerberos_service_name": Names("sasl.kerberos.service.name", "kafka.sasl.kerberos.service.name"),
    "sasl_kerberos_principal": Names("sasl.kerberos.principal", _JAAS),
    "sasl_kerberos_keytab": Names("sasl.kerberos.keytab", _JAAS),
    "sasl_kerberos_kinit_cmd": Names("sasl.kerberos.kinit.cmd", reason=_OWN_LOGIN),
    "sasl_kerberos_min_time_before_relogin": Names(
        "sasl.kerberos.min.time.before.relogin", "kafka.sasl.kerberos.min.time.before.relogin", verbatim=True
    ),
    "client_id": Names("client.id", "kafka.client.id", verbatim=True),
    "group_id_prefix": Names("group.id", "groupIdPrefix"),
    "start_offset": Names("the offsets that it is assigned", "startingOffsets"),
    "start_timestamp": Names("the offsets that it is assigned", "startingTimestamp"),
    "kafka_time_offset": Names("the offsets that it is assigned", "startingTimestamp"),
    "isolation_level": Names("isolation.level", "kafka.isolation.level", verbatim=True),
    "statistics_interval_ms": Names("statistics.interval.ms", verbatim=True, reason=_OWN_STATISTICS),
    "topic_metadata_refresh_interval_ms": Names(
        "topic.metadata.refresh.interval.ms", "kafka.metadata.max.age.ms", verbatim=True
    ),
    "timestamp_frequency_ms": Names(reason=_SOURCE),
    "timestamp_type": Names(reason=_SOURCE),
    "ignore_source_keys": Names(reason=_SOURCE),
    "on_error": Names(reason=_SOURCE),
    "quarantine_limit": Names(reason=_SOURCE),
    "allow_literal_secrets": Names(reason="Read where options are checked."),
    "schema_registry_username": Names(reason=_REGISTRY),
    "schema_registry_password": Names(reason=_REGISTRY),
    "schema_registry_ssl_ca_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_certificate_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_key_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_key_password": Names(reason=_REGISTRY),
}


def word_for_word(options: BaseModel, client: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the options that a client (``librdkafka`` or ``spark``) takes as they are."""
    for option, names in TRANSLATIONS.items():
        name, value = getattr(names, client), getattr(options, option)
        if names.verbatim and name is not None and value is not None:
            yield name, spelled(value)


def spelled(value: object) -> str:
    """Write a value as clients read it."""
    return value.value if isinstance(value, Word) else str(value)
