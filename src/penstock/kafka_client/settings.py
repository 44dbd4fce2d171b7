"""Connection options as settings of clients: of librdkafka, of Kafka's Java client, and of a schema registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from penstock.formats import RegistryAddress
from penstock.kafka_client.connection import ConnectionOptions, RegistryOptions
from penstock.kafka_client.option_values import Word
from penstock.kafka_client.tls import Mechanism

__all__ = [
    "BROKER_NAMES",
    "REGISTRY_NAMES",
    "Names",
    "connection_settings",
    "registry_address",
    "verbatim_settings",
]


@dataclass(frozen=True)
class Names:
    """The name of an option in librdkafka and Spark; whether its value is passed unchanged; why a name is missing."""

    librdkafka: str | None = None
    spark: str | None = None
    verbatim: bool = False
    reason: str = ""


_REGISTRY = "Used to fetch schemas."
_OWN_LOGIN = "Spark's client logs in by itself, with the keytab or with an existing ticket."
_JAAS = "kafka.sasl.jaas.config"

BROKER_NAMES: dict[str, Names] = {
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
}
"""The options for the connection to brokers."""
REGISTRY_NAMES: dict[str, Names] = {
    "schema_registry_username": Names(reason=_REGISTRY),
    "schema_registry_password": Names(reason=_REGISTRY),
    "schema_registry_ssl_ca_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_certificate_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_key_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_key_password": Names(reason=_REGISTRY),
}
"""The options for the connection to a schema registry."""
_LOCATIONS = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")
_KERBEROS = ("sasl_kerberos_principal", "sasl_kerberos_keytab", "sasl_kerberos_kinit_cmd")
_SECRETS = ("ssl_key_password", "sasl_password")


def verbatim_settings(table: Mapping[str, Names], options: BaseModel, client: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the options that a client (``librdkafka`` or ``spark``) accepts unchanged."""
    for option, names in table.items():
        name, value = getattr(names, client), getattr(options, option)
        if names.verbatim and name is not None and value is not None:
            yield name, _client_value(value)


def _client_value(value: object) -> str:
    """Return a value as clients expect it."""
    return value.value if isinstance(value, Word) else str(value)


def connection_settings(broker: str, how: ConnectionOptions) -> dict[str, str]:
    """Return the settings of librdkafka with secrets in clear text; call it right before creating the client."""
    how.require_secrets()
    as_they_are = ("sasl_username", *_LOCATIONS, *_KERBEROS)
    settings = {_name(option): getattr(how, option) for option in as_they_are}
    settings |= {_name(option): how.secrets()[option].resolved() for option in _SECRETS if option in how.secrets()}
    return {
        "bootstrap.servers": broker,
        "security.protocol": how.protocol().value,
        **dict(verbatim_settings(BROKER_NAMES, how, "librdkafka")),
        **_kerberos_service(how),
        **{name: value for name, value in settings.items() if value is not None},
    }


def _kerberos_service(how: ConnectionOptions) -> dict[str, str]:
    if how.sasl_mechanisms is not Mechanism.GSSAPI:
        return {}
    return {_name("sasl_kerberos_service_name"): how.kerberos_service()}


def _name(option: str) -> str:
    name = BROKER_NAMES[option].librdkafka
    assert name is not None
    return name


def registry_address(url: str | None, how: RegistryOptions) -> RegistryAddress | None:
    """Return the address of a registry, with references to its secrets; None if there is no registry."""
    if url is None:
        return None
    password, key_password = how.schema_registry_password, how.schema_registry_ssl_key_password
    return RegistryAddress(
        url=url,
        username=how.schema_registry_username,
        password=None if password is None else password.reference,
        ca_location=how.schema_registry_ssl_ca_location,
        certificate_location=how.schema_registry_ssl_certificate_location,
        key_location=how.schema_registry_ssl_key_location,
        key_password=None if key_password is None else key_password.reference,
    )
