"""The options as those of Spark's Kafka reader (``format("kafka")``), with all secrets in a private file."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import DefiniteError
from penstock.sources.kafka.jaas import kerberos_login, password_login
from penstock.sources.kafka.pem import read_certificates, read_private_key
from penstock.sources.kafka.private_settings import point_to
from penstock.sources.kafka.security import Mechanism
from penstock.sources.kafka.sql_options import KafkaSqlOptions, Metadata
from penstock.sources.kafka.translation import word_for_word
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["spark_options"]


def spark_options(what: KafkaSqlOptions, how: KafkaWithOptions, source: str, private: Path) -> dict[str, str]:
    """Return all options but where to begin, which is for `Start.spark_options` to say.

    Secrets, and certificates with them, are written into a file of the folder `private` that is the source's own. It
    is replaced when they change, and has to be there for as long as the options are used.
    """
    how.require_secrets()
    headers = any(column.what == Metadata.HEADERS for column in what.include)
    return {
        "kafka.bootstrap.servers": what.broker,
        "subscribe": ",".join(what.names()),
        "groupIdPrefix": f"{how.group_id_prefix}{source}",
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": "true",
        "kafka.security.protocol": how.protocol().value,
        **dict(word_for_word(how, "spark")),
        **_plain_security(how),
        **point_to({**_tls(how), **_login(how)}, private / f"{source}.properties"),
    }


def _plain_security(how: KafkaWithOptions) -> dict[str, str]:
    """Return what says of which kind the secrets are."""
    told = {}
    if how.ssl_ca_location is not None:
        told["kafka.ssl.truststore.type"] = "PEM"
    if how.ssl_key_location is not None:
        told["kafka.ssl.keystore.type"] = "PEM"
    if how.sasl_mechanisms is Mechanism.GSSAPI:
        told["kafka.sasl.kerberos.service.name"] = how.kerberos_service()
    return told


def _tls(how: KafkaWithOptions) -> dict[str, str]:
    settings = {}
    if how.ssl_ca_location is not None:
        settings["ssl.truststore.certificates"] = read_certificates(how.ssl_ca_location, "ssl_ca_location")
    if how.ssl_certificate_location is not None and how.ssl_key_location is not None:
        chain = read_certificates(how.ssl_certificate_location, "ssl_certificate_location")
        settings |= {"ssl.keystore.certificate.chain": chain, **_private_key(how, how.ssl_key_location)}
    return settings


def _private_key(how: KafkaWithOptions, path: str) -> dict[str, str]:
    """Return the key, and its password only where it needs one: Java refuses one that is not needed."""
    key = read_private_key(path, "ssl_key_location")
    if not key.is_locked:
        return {"ssl.keystore.key": key.pem}
    if how.ssl_key_password is None:
        message = f"the private key in {path} is locked by a password, and none was given"
        raise DefiniteError(message, "Set ssl_key_password to where it is: env:NAME or file:PATH.")
    return {"ssl.keystore.key": key.pem, "ssl.key.password": how.ssl_key_password.resolved()}


def _login(how: KafkaWithOptions) -> dict[str, str]:
    if how.sasl_mechanisms is None:
        return {}
    if how.sasl_mechanisms is Mechanism.GSSAPI:
        return {"sasl.jaas.config": kerberos_login(how.sasl_kerberos_principal, how.sasl_kerberos_keytab)}
    assert how.sasl_username is not None
    assert how.sasl_password is not None
    return {"sasl.jaas.config": password_login(how.sasl_mechanisms, how.sasl_username, how.sasl_password.resolved())}
