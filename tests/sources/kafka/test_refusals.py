"""What errors of the Java client mean, by the causes that Spark's text has."""

from __future__ import annotations

import pytest

from penstock.sources.kafka.broker_errors import spark_refusal

KAFKA = "org.apache.kafka.common"


@pytest.mark.parametrize(
    ("causes", "said", "hint"),
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
        ([f"{KAFKA}.errors.UnknownTopicOrPartitionException: none"], "none", "topic's name"),
    ],
)
def test_a_cause_is_found_among_others(causes: list[str], said: str, hint: str) -> None:
    lines = ["An error occurred while calling o1.load.", ": java.util.concurrent.ExecutionException: it"]
    for cause in causes:
        lines += ["\tat org.apache.spark.Somewhere(Somewhere.scala:1)", f"Caused by: {cause}"]
    error = spark_refusal("k1:9092", "clicks", "\n".join(lines))
    assert error is not None
    assert error.message.startswith("the topic clicks at k1:9092 cannot be read: ")
    assert said in error.message
    assert "Caused by" not in error.message
    assert hint in error.hint


def test_other_errors_are_not_explained() -> None:
    assert spark_refusal("k1:9092", "clicks", "java.lang.OutOfMemoryError: Java heap space") is None
