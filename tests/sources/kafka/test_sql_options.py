"""What stands before WITH: brokers, topic, formats, columns and envelope, and how the two halves go together."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.sources.kafka.message_formats import AvroOptions
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions, refuse_strangers
from penstock.sources.kafka.with_options import KafkaWithOptions

CLICKS: dict[str, Any] = {"broker": "k1:9092", "topic": "clicks", "value_format": "json"}
AVRO = {**CLICKS, "key_format": "avro", "value_format": "avro", "schema_registry": "http://registry:8081"}
UPSERT = {"kind": "upsert"}


def test_the_example_of_the_interface() -> None:
    options = KafkaSqlOptions.given(
        **AVRO | {"broker": "k1:9092, k2:9092"},
        include=({"what": "key"}, {"what": "partition", "name": "p"}, {"what": "headers"}),
        envelope={"kind": "DEBEZIUM", "transaction_metadata_topic": "clicks.transactions"},
    )
    assert options.broker == "k1:9092,k2:9092"
    assert (options.key_format, options.value_format) == (AvroOptions(), AvroOptions())
    assert [(column.what, column.name) for column in options.include] == [
        ("key", None),
        ("partition", "p"),
        ("headers", None),
    ]
    assert options.envelope.kind is EnvelopeKind.DEBEZIUM
    assert KafkaSqlOptions.model_validate_json(options.model_dump_json()) == options


@pytest.mark.parametrize("broker", ["k1", "k1:9092", "[::1]:9092", "10.0.0.1:9,k_2.x-y:10"])
def test_brokers(broker: str) -> None:
    assert KafkaSqlOptions.given(**CLICKS | {"broker": broker}).broker == broker


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"broker": ""}, "host and port", "k1:9092"),
        ({"broker": "k1:9092,,k2"}, "host and port", "k1:9092"),
        ({"broker": "http://k1"}, "host and port", "k1:9092"),
        ({"topic": "a b"}, "cannot be the name", "249"),
        ({"topic": ".."}, "cannot be the name", "249"),
        ({"topic": "a,b"}, "cannot be the name", "249"),
        ({"topic": "x" * 250}, "cannot be the name", "249"),
        ({"value_format": "xml"}, "there is no format xml", "AVRO"),
        ({"value_format": "avro"}, "AVRO needs a schema registry", "USING SCHEMA REGISTRY"),
        ({"key_format": "protobuf"}, "PROTOBUF needs a schema registry", "USING SCHEMA REGISTRY"),
        ({"schema_registry": "registry:8081"}, "begins with http", "https://registry:8081"),
        ({"schema_registry": "http://[x"}, "begins with http", "https://registry:8081"),
        ({"schema_registry": "http://u:s3cret@r"}, "holds a user or password", "schema_registry_password"),
        ({"envelope": UPSERT}, "ENVELOPE UPSERT finds rows by their keys", "KEY FORMAT"),
        ({"envelope": {"kind": "debezium upsert"}}, "DEBEZIUM UPSERT finds rows", "KEY FORMAT"),
        ({"envelope": {"kind": "none", "transaction_metadata_topic": "t"}}, "Debezium writes", "ENVELOPE DEBEZIUM"),
        ({"envelope": {"kind": "debezium", "transaction_metadata_topic": "clicks"}}, "cannot hold both", "Debezium"),
        ({"envelope": {"kind": "debezium", "transaction_metadata_topic": "a b"}}, "cannot be the name", "249"),
        ({"include": ({"what": "key"},)}, "INCLUDE KEY", "KEY FORMAT BYTES"),
        ({"include": ({"what": "offset"}, {"what": "partition", "name": "Offset"})}, "the name offset", "AS"),
        ({"include": ({"what": "weather"},)}, "no 'weather' to include", "headers"),
        ({"topik": "x"}, "no option topik", "Did you mean topic?"),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        KafkaSqlOptions.given(**CLICKS | options)
    assert hint in caught.value.hint
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"schema_registry_username": "me", "schema_registry_password": "env:P"}, "there is no schema registry"),
        (AVRO, {"schema_registry_ssl_ca_location": "/ca"}, "not one of https"),
        ({**AVRO, "envelope": UPSERT}, {"ignore_source_keys": True}, "by their keys"),
        ({}, {"ignore_source_keys": True}, "no key anyway"),
        ({"topic": None, "topics": ("a", "b")}, {"start_offset": (1, 2)}, "several topics"),
    ],
)
def test_halves_that_do_not_go_together(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    what, how = KafkaSqlOptions.given(**CLICKS | before), KafkaWithOptions.given(**after)
    with pytest.raises(UsageError, match=said) as caught:
        refuse_strangers(what, how)
    assert caught.value.hint


def test_halves_that_do() -> None:
    secured = {**AVRO, "schema_registry": "https://registry", "envelope": UPSERT}
    how = KafkaWithOptions.given(
        schema_registry_username="me", schema_registry_password="env:P", schema_registry_ssl_ca_location="/ca"
    )
    refuse_strangers(KafkaSqlOptions.given(**secured), how)
    refuse_strangers(KafkaSqlOptions.given(**CLICKS), KafkaWithOptions.given(start_offset=(1, 2)))
