"""Errors of a Kafka client, sorted: worth another try, or not before somebody acts; and what to do."""

from __future__ import annotations

from confluent_kafka import KafkaError

from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["DEFINITE", "refusal"]

_LOGIN = "Check sasl_mechanisms, sasl_username, what sasl_password refers to, and security_protocol."
_TLS = (
    "Check ssl_ca_location, ssl_certificate_location, ssl_key_location, what ssl_key_password refers to, and brokers."
)
_MISSING = "Check the topic's name, and that the user may describe it."
_BUILD = "(GSSAPI needs a build of librdkafka with libsasl2: pip install --no-binary confluent-kafka confluent-kafka.)"
DEFINITE: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Grant the user read and describe on the topic.",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Grant the user read on groups that begin with group_id_prefix.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the user describe on the cluster.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: _TLS,
    KafkaError._INVALID_ARG: f"Check the options of the source. {_BUILD}",
    KafkaError.UNKNOWN_TOPIC_OR_PART: _MISSING,
    KafkaError.TOPIC_EXCEPTION: _MISSING,
}
"""What trying again does not mend, and what does."""


def refusal(brokers: str, topic: str, told: KafkaError, trouble: KafkaError | None) -> PenstockError:
    """Return our error for one of a client's; `trouble` is what it told of its connections before."""
    certain = [error for error in (told, trouble) if error is not None and error.code() in DEFINITE]
    if certain:
        message = f"the topic {topic} at {brokers} cannot be read: {certain[0].str()}"
        return DefiniteError(message, DEFINITE[certain[0].code()])
    connecting = f" ({trouble.str()})" if trouble is not None else ""
    message = f"the topic {topic} at {brokers} cannot be read: {told.str()}{connecting}"
    return TransientError(message, "Check that the brokers are up and reached from here.")
