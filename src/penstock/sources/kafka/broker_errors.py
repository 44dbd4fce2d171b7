"""Errors of both Kafka clients: transient or permanent, and the hint for each.

Errors of librdkafka have codes. Errors of the Java client arrive as the text of a Spark exception with a stack of
causes; the one that matters is found by its name.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["refusal", "spark_refusal", "way_out"]

_LOGIN = "Check sasl_mechanisms, sasl_username, what sasl_password refers to, and security_protocol."
_TLS = (
    "Check ssl_ca_location, ssl_certificate_location, ssl_key_location, what ssl_key_password refers to, and brokers."
)
_DENIED = "Grant the user read and describe on the topic."
_GROUPS = "Grant the user read on groups that begin with group_id_prefix."
_MISSING = "Check the topic's name, and that the user may describe it."
_CODES: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _GROUPS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the user describe on the cluster.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: _TLS,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _MISSING,
    KafkaError.TOPIC_EXCEPTION: _MISSING,
}
_SETTINGS = {
    "ssl.": _TLS,
    "mechanism GSSAPI": "Kerberos needs a librdkafka that is built with libsasl2, which is not in the wheel of "
    "confluent-kafka: pip install --no-binary confluent-kafka confluent-kafka, beside such a librdkafka.",
}
"""Which settings a client does not take, by its words, and what mends that."""
_JAVA = {
    "PBES2 SecretKeyFactory not available": "This Java cannot unlock the key of ssl_key_location. Use a newer one, "
    "or lock the key in the older way: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES.",
    "SaslAuthenticationException": _LOGIN,
    "UnsupportedSaslMechanismException": _LOGIN,
    "LoginException": _LOGIN,
    "SslAuthenticationException": _TLS,
    "Invalid PEM keystore configs": _TLS,
    "TopicAuthorizationException": _DENIED,
    "GroupAuthorizationException": _GROUPS,
    "UnknownTopicOrPartitionException": _MISSING,
}
"""Causes as the Java client names them, those that tell most first, and what mends them."""
_HANDSHAKE_REFUSED = "SSL alert number"
"""A broker that does not take a client's certificate says so; the code is that of a lost connection."""


def way_out(error: KafkaError) -> str | None:
    """Say what mends an error that trying again does not; None where it may."""
    text = error.str()
    if error.code() == KafkaError._INVALID_ARG:
        found = (hint for words, hint in _SETTINGS.items() if words in text)
        return next(found, "Check the options of the source.")
    return _TLS if _HANDSHAKE_REFUSED in text else _CODES.get(error.code())


def refusal(brokers: str, topic: str, told: KafkaError, trouble: KafkaError | None) -> PenstockError:
    """Return our error for one of a client's; `trouble` is what it told of its connections before."""
    for error in (told, trouble):
        if error is not None and (hint := way_out(error)) is not None:
            return DefiniteError(f"the topic {topic} at {brokers} cannot be read: {error.str()}", hint)
    connecting = f" ({trouble.str()})" if trouble is not None else ""
    message = f"the topic {topic} at {brokers} cannot be read: {told.str()}{connecting}"
    return TransientError(message, "Check that the brokers are up and reached from here.")


def spark_refusal(brokers: str, topic: str, text: str) -> DefiniteError | None:
    """Return our error for the text of one that Spark raised; None where it does not tell a cause that we know."""
    for cause, hint in _JAVA.items():
        for line in (line.strip() for line in text.splitlines() if cause in line):
            told = line.removeprefix("Caused by: ")
            return DefiniteError(f"the topic {topic} at {brokers} cannot be read: {told}", hint)
    return None
