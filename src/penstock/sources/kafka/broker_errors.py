"""Errors of both Kafka clients: transient or permanent, and the hint for each.

Errors of librdkafka have codes. Errors of the Java client arrive as the text of a Spark exception with a stack of
causes; the one that matters is found by its name.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["broker_error", "permanent_hint", "spark_error"]

_LOGIN = "Check sasl_mechanisms, sasl_username, the secret that sasl_password refers to, and security_protocol."
_TLS = (
    "Check ssl_ca_location, ssl_certificate_location, ssl_key_location, the secret that ssl_key_password refers to, "
    "and the broker addresses."
)
_DENIED = "Grant the user READ and DESCRIBE on the topic."
_GROUPS = "Grant the user READ on groups that begin with group_id_prefix."
_MISSING = "Check the topic name, and that the user has DESCRIBE on the topic."
_CODES: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _GROUPS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the user DESCRIBE on the cluster.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: _TLS,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _MISSING,
    KafkaError.TOPIC_EXCEPTION: _MISSING,
}
_SETTINGS = {
    "ssl.": _TLS,
    "mechanism GSSAPI": "Kerberos requires a librdkafka built with libsasl2, which the confluent-kafka wheel does not "
    "include. Install such a librdkafka, then run: pip install --no-binary confluent-kafka confluent-kafka",
}
"""Settings that a client rejects, by a part of its message, and the hint for each."""
_JAVA = {
    "PBES2 SecretKeyFactory not available": "This Java version cannot decrypt the key in ssl_key_location. Use a newer "
    "one, or re-encrypt the key: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES.",
    "SaslAuthenticationException": _LOGIN,
    "UnsupportedSaslMechanismException": _LOGIN,
    "LoginException": _LOGIN,
    "SslAuthenticationException": _TLS,
    "Invalid PEM keystore configs": _TLS,
    "TopicAuthorizationException": _DENIED,
    "GroupAuthorizationException": _GROUPS,
    "UnknownTopicOrPartitionException": _MISSING,
}
"""Causes as the Java client names them, most specific first, and the hint for each."""
_HANDSHAKE_REJECTED = "SSL alert number"
"""The text of a broker that rejects a client certificate; the error code is that of a lost connection."""


def permanent_hint(error: KafkaError) -> str | None:
    """Return the hint for a permanent error; None if the error may be transient."""
    text = error.str()
    if error.code() == KafkaError._INVALID_ARG:
        found = (hint for words, hint in _SETTINGS.items() if words in text)
        return next(found, "Check the options of the source.")
    return _TLS if _HANDSHAKE_REJECTED in text else _CODES.get(error.code())


def broker_error(brokers: str, topic: str, reported: KafkaError, connection_error: KafkaError | None) -> PenstockError:
    """Return the Penstock error for a client error; `connection_error` is the last one reported."""
    for error in (reported, connection_error):
        if error is not None and (hint := permanent_hint(error)) is not None:
            return DefiniteError(f"could not read topic {topic} at {brokers}: {error.str()}", hint)
    connecting = f" ({connection_error.str()})" if connection_error is not None else ""
    message = f"could not read topic {topic} at {brokers}: {reported.str()}{connecting}"
    return TransientError(message, "Check that the brokers are running and reachable from this host.")


def spark_error(brokers: str, topic: str, text: str) -> DefiniteError | None:
    """Return the Penstock error for the text of a Spark exception; None if it names no known cause."""
    for cause, hint in _JAVA.items():
        for line in (line.strip() for line in text.splitlines() if cause in line):
            cause_line = line.removeprefix("Caused by: ")
            return DefiniteError(f"could not read topic {topic} at {brokers}: {cause_line}", hint)
    return None
