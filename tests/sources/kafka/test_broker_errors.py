"""Errors of the Java client, by the causes in Spark's error text."""

from __future__ import annotations

import pytest

from penstock.sources.kafka.topic_admin import spark_error

KAFKA = "org.apache.kafka.common"


@pytest.mark.parametrize(
    ("causes", "message", "hint"),
    [
        ([f"{KAFKA}.errors.SaslAuthenticationException: no"], "SaslAuthenticationException: no", "sasl_password"),
        ([f"{KAFKA}.errors.SslAuthenticationException: SSL handshake failed"], "handshake", "ssl_ca_location"),
        (
            [
                f"{KAFKA}.errors.InvalidConfigurationException: Invalid PEM keystore configs",
                "java.security.NoSuchAlgorithmException: PBES2 SecretKeyFactory not available",
            ],
            "PBES2",
            "newer",
        ),
        ([f"{KAFKA}.errors.InvalidConfigurationException: Invalid PEM keystore configs"], "PEM", "ssl_key_location"),
        ([f"{KAFKA}.errors.TopicAuthorizationException: Not authorized"], "Not authorized", "Grant"),
        ([f"{KAFKA}.errors.UnknownTopicOrPartitionException: none"], "none", "topic name"),
    ],
)
def test_cause_is_found_among_others(causes: list[str], message: str, hint: str) -> None:
    lines = ["An error occurred while calling o1.load.", ": java.util.concurrent.ExecutionException: it"]
    for cause in causes:
        lines += ["\tat org.apache.spark.Somewhere(Somewhere.scala:1)", f"Caused by: {cause}"]
    error = spark_error("k1:9092", "clicks", "\n".join(lines))
    assert error is not None
    assert error.message.startswith("could not read topic clicks at k1:9092: ")
    assert message in error.message
    assert "Caused by" not in error.message
    assert hint in error.hint


def test_other_errors_are_not_explained() -> None:
    assert spark_error("k1:9092", "clicks", "java.lang.OutOfMemoryError: Java heap space") is None
