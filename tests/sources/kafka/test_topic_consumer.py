"""The consumer that resolves offsets, through the secure listeners of a real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from tests.sources.kafka.conftest import FIRST_AT, KEY_PASSWORD, MESSAGES, PARTITIONS, PASSWORD, STEP, SecureBroker

from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_start import start_of
from penstock.sources.kafka.with_options import KafkaWithOptions

NOW = datetime.fromtimestamp((FIRST_AT + MESSAGES * STEP) / 1000, UTC)

LOGINS: dict[str, Callable[[SecureBroker], tuple[KafkaSqlOptions, KafkaWithOptions]]] = {
    "SCRAM-SHA-512": lambda to: (to.sql_options(), to.login()),
    "SCRAM-SHA-256": lambda to: (to.sql_options(), to.login(sasl_mechanisms="SCRAM-SHA-256")),
    "PLAIN": lambda to: (to.sql_options(), to.plain()),
    "certificate": lambda to: (to.sql_options(to.ssl_port), to.certificate()),
    "locked key": lambda to: (to.sql_options(to.ssl_port), to.encrypted_key()),
}


@pytest.mark.parametrize("login", LOGINS)
def test_all_messages_are_read_with_every_login(login: str, secured: SecureBroker) -> None:
    what, how = LOGINS[login](secured)
    with TopicConsumer(what, how, "shop", secured.topic) as client:
        assert client.partitions() == PARTITIONS
        first = client.resolve_offsets(start_of(how, NOW))
        client.consumer.assign([TopicPartition(secured.topic, number, offset) for number, offset in enumerate(first)])
        read: set[Any] = set()
        while len(read) < PARTITIONS * MESSAGES:
            message = client.consumer.poll(20)
            assert message is not None
            assert message.error() is None
            read.add(message.value())
    assert read == {f"m{number}".encode() for number in range(PARTITIONS * MESSAGES)}


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({}, [0, 0]),
        ({"start_offset": "latest"}, [10, 10]),
        ({"start_offset": 4}, [4, 0]),
        ({"start_timestamp": datetime.fromtimestamp((FIRST_AT + 3 * STEP - 1) / 1000, UTC).isoformat()}, [3, 3]),
        ({"kafka_time_offset": FIRST_AT + 9 * STEP}, [9, 9]),
        ({"kafka_time_offset": -2 * STEP}, [8, 8]),
        ({"start_timestamp": NOW.isoformat()}, [10, 10]),
    ],
)
def test_start_is_resolved_to_offsets(options: dict[str, Any], offsets: list[int], secured: SecureBroker) -> None:
    how = secured.login(**options)
    with TopicConsumer(secured.sql_options(), how, "shop", secured.topic) as client:
        assert client.resolve_offsets(start_of(how, NOW)) == offsets


def connection_error(what: KafkaSqlOptions, how: KafkaWithOptions) -> PenstockError:
    (topic,) = what.names()
    with pytest.raises(PenstockError) as caught, TopicConsumer(what, how, "shop", topic, patience=30) as client:
        client.partitions()
    for secret in ("hunter2", PASSWORD, KEY_PASSWORD):
        assert secret not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    return caught.value


def test_a_wrong_password(secured: SecureBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KO_WRONG", "hunter2")
    error = connection_error(secured.sql_options(), secured.login(sasl_password="env:KO_WRONG"))
    assert isinstance(error, DefiniteError)
    assert "authentication" in error.message.lower()
    assert "the secret that sasl_password refers to" in error.hint


def test_untrusted_broker_certificate(secured: SecureBroker) -> None:
    error = connection_error(secured.sql_options(), secured.login(ssl_ca_location=secured.tls("stranger.crt")))
    assert isinstance(error, DefiniteError)
    assert "ssl_ca_location" in error.hint


def test_a_client_without_a_certificate(secured: SecureBroker) -> None:
    how = KafkaWithOptions.given(ssl_ca_location=secured.tls("ca.crt"))
    error = connection_error(secured.sql_options(secured.ssl_port), how)
    assert isinstance(error, DefiniteError)
    assert "ssl_certificate_location" in error.hint


def test_wrong_key_password(secured: SecureBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KO_WRONG", "hunter2")
    error = connection_error(
        secured.sql_options(secured.ssl_port), secured.encrypted_key(ssl_key_password="env:KO_WRONG")
    )
    assert isinstance(error, DefiniteError)
    assert "ssl_key" in error.hint


def test_kerberos_without_libsasl2(secured: SecureBroker) -> None:
    how = KafkaWithOptions.given(sasl_mechanisms="GSSAPI", ssl_ca_location=secured.tls("ca.crt"))
    error = connection_error(secured.sql_options(), how)
    assert isinstance(error, DefiniteError)
    assert "libsasl2" in error.hint


def test_missing_topic(secured: SecureBroker) -> None:
    error = connection_error(secured.sql_options(topic="nothing"), secured.login())
    assert isinstance(error, DefiniteError)
    assert "topic nothing" in error.message


def test_unreachable_broker() -> None:
    what = KafkaSqlOptions.given(broker="127.0.0.1:1", topic="t", value_format="text")
    with (
        pytest.raises(TransientError, match="Connection refused"),
        TopicConsumer(what, KafkaWithOptions(), "shop", "t", patience=0.5) as client,
    ):
        client.partitions()
