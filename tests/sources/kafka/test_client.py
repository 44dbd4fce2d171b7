"""The client that looks at topics, through the guarded doors of a real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from tests.sources.kafka.conftest import FIRST_AT, KEY_PASSWORD, MESSAGES, PARTITIONS, PASSWORD, STEP, Guarded

from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_client import TopicClient
from penstock.sources.kafka.topic_start import start_of
from penstock.sources.kafka.with_options import KafkaWithOptions

NOW = datetime.fromtimestamp((FIRST_AT + MESSAGES * STEP) / 1000, UTC)

WAYS: dict[str, Callable[[Guarded], tuple[KafkaSqlOptions, KafkaWithOptions]]] = {
    "SCRAM-SHA-512": lambda to: (to.what(), to.login()),
    "SCRAM-SHA-256": lambda to: (to.what(), to.login(sasl_mechanisms="SCRAM-SHA-256")),
    "PLAIN": lambda to: (to.what(), to.plain()),
    "certificate": lambda to: (to.what(to.ssl_port), to.certificate()),
    "locked key": lambda to: (to.what(to.ssl_port), to.locked()),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_messages_are_read_by_every_way_in(way: str, guarded: Guarded) -> None:
    what, how = WAYS[way](guarded)
    with TopicClient(what, how, "shop", guarded.topic) as client:
        assert client.partitions() == PARTITIONS
        first = client.settled(start_of(how, NOW))
        client.consumer.assign([TopicPartition(guarded.topic, number, offset) for number, offset in enumerate(first)])
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
def test_a_start_is_settled_to_offsets(options: dict[str, Any], offsets: list[int], guarded: Guarded) -> None:
    how = guarded.login(**options)
    with TopicClient(guarded.what(), how, "shop", guarded.topic) as client:
        assert client.settled(start_of(how, NOW)) == offsets


def refused(what: KafkaSqlOptions, how: KafkaWithOptions) -> PenstockError:
    (topic,) = what.names()
    with pytest.raises(PenstockError) as caught, TopicClient(what, how, "shop", topic, patience=30) as client:
        client.partitions()
    for secret in ("hunter2", PASSWORD, KEY_PASSWORD):
        assert secret not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    return caught.value


def test_a_wrong_password(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KO_WRONG", "hunter2")
    error = refused(guarded.what(), guarded.login(sasl_password="env:KO_WRONG"))
    assert isinstance(error, DefiniteError)
    assert "authentication" in error.message.lower()
    assert "what sasl_password refers to" in error.hint


def test_a_broker_whose_authority_is_not_trusted(guarded: Guarded) -> None:
    error = refused(guarded.what(), guarded.login(ssl_ca_location=guarded.tls("stranger.crt")))
    assert isinstance(error, DefiniteError)
    assert "ssl_ca_location" in error.hint


def test_a_client_without_a_certificate(guarded: Guarded) -> None:
    how = KafkaWithOptions.given(ssl_ca_location=guarded.tls("ca.crt"))
    error = refused(guarded.what(guarded.ssl_port), how)
    assert isinstance(error, DefiniteError)
    assert "ssl_certificate_location" in error.hint


def test_a_key_that_is_not_unlocked(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KO_WRONG", "hunter2")
    error = refused(guarded.what(guarded.ssl_port), guarded.locked(ssl_key_password="env:KO_WRONG"))
    assert isinstance(error, DefiniteError)
    assert "ssl_key" in error.hint


def test_kerberos_without_libsasl2(guarded: Guarded) -> None:
    how = KafkaWithOptions.given(sasl_mechanisms="GSSAPI", ssl_ca_location=guarded.tls("ca.crt"))
    error = refused(guarded.what(), how)
    assert isinstance(error, DefiniteError)
    assert "libsasl2" in error.hint


def test_a_topic_that_is_not_there(guarded: Guarded) -> None:
    error = refused(guarded.what(topic="nothing"), guarded.login())
    assert isinstance(error, DefiniteError)
    assert "topic nothing" in error.message


def test_nobody_is_there() -> None:
    what = KafkaSqlOptions.given(broker="127.0.0.1:1", topic="t", value_format="text")
    with (
        pytest.raises(TransientError, match="Connection refused"),
        TopicClient(what, KafkaWithOptions(), "shop", "t", patience=0.5) as client,
    ):
        client.partitions()
