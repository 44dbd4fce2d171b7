"""The address of a Kafka source's schema registry, with its credentials."""

from __future__ import annotations

from penstock.formats import RegistryAddress
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["registry_address"]


def registry_address(what: KafkaSqlOptions, how: KafkaWithOptions) -> RegistryAddress | None:
    """Return the registry address from the options; None if there is no registry."""
    if what.schema_registry is None:
        return None
    password, key_password = how.schema_registry_password, how.schema_registry_ssl_key_password
    return RegistryAddress(
        url=what.schema_registry,
        username=how.schema_registry_username,
        password=None if password is None else password.reference,
        ca_location=how.schema_registry_ssl_ca_location,
        certificate_location=how.schema_registry_ssl_certificate_location,
        key_location=how.schema_registry_ssl_key_location,
        key_password=None if key_password is None else key_password.reference,
    )
