"""Options before WITH: brokers, topic, formats, columns and envelope, and their combination with WITH options."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.sources.kafka.message_formats import AvroOptions
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions, validate_together
from penstock.sources.kafka.with_options import KafkaWithOptions

CLICKS: dict[str, Any] = {"broker": "k1:9092", "topic": "clicks", "value_format": "json"}
AVRO = {**CLICKS, "key_format": "avro", "value_format": "avro", "schema_registry": "http://registry:8081"}
UPSERT = {"kind": "upsert"}


def test_documented_example() -> None:
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
    ("options", "message", "hint"),
    [
        ({"broker": ""}, 'invalid broker ""', "k1:9092"),
        ({"broker": "k1:9092,,k2"}, 'invalid broker ""', "k1:9092"),
        ({"broker": "http://k1"}, 'invalid broker "http://k1"', "k1:9092"),
        ({"broker": "u:s3cret@k1"}, "contains a user or password", "k1:9092"),
        ({"topic": "a b"}, "invalid topic name", "249"),
        ({"topic": ".."}, "invalid topic name", "249"),
        ({"topic": "a,b"}, "invalid topic name", "249"),
        ({"topic": "x" * 250}, "invalid topic name", "249"),
        ({"value_format": "xml"}, 'unrecognized format "xml"', "AVRO"),
        ({"value_format": "avro"}, "AVRO requires a schema registry", "USING SCHEMA REGISTRY"),
        ({"key_format": "protobuf"}, "PROTOBUF requires a schema registry", "USING SCHEMA REGISTRY"),
        ({"schema_registry": "registry:8081"}, "invalid URL of the schema registry", "https://registry:8081"),
        ({"schema_registry": "http://[x"}, "invalid URL of the schema registry", "https://registry:8081"),
        ({"schema_registry": "http://u:s3cret@r"}, "contains a user or password", "schema_registry_password"),
        ({"envelope": UPSERT}, "ENVELOPE UPSERT requires a KEY FORMAT", "KEY FORMAT"),
        ({"envelope": {"kind": "debezium upsert"}}, "DEBEZIUM UPSERT requires a KEY FORMAT", "KEY FORMAT"),
        (
            {"envelope": {"kind": "none", "transaction_metadata_topic": "t"}},
            "requires a DEBEZIUM envelope",
            "ENVELOPE DEBEZIUM",
        ),
        (
            {"envelope": {"kind": "debezium", "transaction_metadata_topic": "clicks"}},
            "is both a data topic",
            "Debezium",
        ),
        ({"envelope": {"kind": "debezium", "transaction_metadata_topic": "a b"}}, "invalid topic name", "249"),
        ({"include": ({"what": "key"},)}, "INCLUDE KEY", "KEY FORMAT BYTES"),
        (
            {"include": ({"what": "offset"}, {"what": "partition", "name": "Offset"})},
            'INCLUDE column "offset" specified more than once',
            "AS",
        ),
        ({"include": ({"what": "weather"},)}, 'unrecognized INCLUDE column "weather"', "headers"),
        ({"topik": "x"}, 'unrecognized option "topik"', 'Did you mean "topic"?'),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        KafkaSqlOptions.given(**CLICKS | options)
    assert hint in caught.value.hint
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"schema_registry_username": "me", "schema_registry_password": "env:P"}, "requires a schema registry"),
        (AVRO, {"schema_registry_ssl_ca_location": "/ca"}, "requires an https URL"),
        ({"topic": None, "topics": ("a", "b")}, {"start_offset": (1, 2)}, "require a single topic, not 2"),
    ],
)
def test_invalid_combinations_are_rejected(before: dict[str, Any], after: dict[str, Any], message: str) -> None:
    what, how = KafkaSqlOptions.given(**CLICKS | before), KafkaWithOptions.given(**after)
    with pytest.raises(UsageError, match=message) as caught:
        validate_together(what, how)
    assert caught.value.hint


def test_valid_combinations_are_accepted() -> None:
    secured = {**AVRO, "schema_registry": "https://registry", "envelope": UPSERT}
    how = KafkaWithOptions.given(
        schema_registry_username="me", schema_registry_password="env:P", schema_registry_ssl_ca_location="/ca"
    )
    validate_together(KafkaSqlOptions.given(**secured), how)
    validate_together(KafkaSqlOptions.given(**CLICKS), KafkaWithOptions.given(start_offset=(1, 2)))
