"""A Kafka sink as a value: written as SQL and parsed again, stored; what its options require of each other."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sql.generated import DURATIONS, NAMES, REFERENCES, TEXTS, kept, optional

from penstock.errors import UsageError
from penstock.executor import described_sink, parsed, sink_statement
from penstock.kafka_client.tls import Mechanism
from penstock.model import TableName
from penstock.sinks.kafka.spec import KafkaSink, KafkaSinkOptions, KafkaSinkSqlOptions
from penstock.sinks.words import CleanupPolicy, Delivery, SinkEnvelope, SinkFormat, SubjectStrategy
from penstock.sql.statements import CreateSink

ORDERS: dict[str, Any] = {"broker": "k1:9092", "topic": "orders", "format": "json", "envelope": "upsert"}
LEAST = {"delivery": "at least once"}
UPSTREAM = TableName("public", "orders")
REGISTRY = "https://registry:8081"


def sink(table: str | None = "orders", **options: Any) -> KafkaSink:
    """Return a sink of a table, or of all tables, with these options instead of those of ORDERS."""
    return KafkaSink.of("orders_out", "shop", table, **kept({**ORDERS, **options}))


COLUMNS = st.lists(NAMES, unique=True, max_size=3).map(tuple)
METHODS = st.one_of(st.sampled_from(["null", "last four", "hash"]), TEXTS.map(lambda text: f"fixed:{text}"))
LOGINS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "sasl_mechanisms": st.sampled_from([m for m in Mechanism if m.has_password]),
            "sasl_username": TEXTS.filter(bool),
            "sasl_password": REFERENCES,
        }
    ),
)
REST = st.fixed_dictionaries(
    {
        "snapshot": optional(st.booleans()),
        "rename_columns": optional(
            st.lists(NAMES, unique=True, max_size=3).map(lambda names: {f"{n}!": n for n in names})
        ),
        "format_timestamp": optional(TEXTS.filter(bool)),
        "format_bytes": optional(st.just("base64")),
        "cleanup_policy": optional(st.sampled_from(CleanupPolicy)),
        "partitions": optional(st.integers(1, 100_000)),
        "positions_topic": optional(st.just("positions")),
        "delivery": st.just(Delivery.EXACTLY_ONCE),
        "retain_limit": optional(DURATIONS),
        "client_id": optional(st.just("me")),
    }
)


@st.composite
def sinks(draw: st.DrawFn) -> KafkaSink:
    """Draw a valid sink."""
    table = draw(optional(NAMES))
    envelope, format = draw(st.sampled_from(SinkEnvelope)), draw(st.sampled_from(SinkFormat))
    if envelope is SinkEnvelope.DEBEZIUM and format is SinkFormat.PROTOBUF:
        format = SinkFormat.AVRO
    options: dict[str, Any] = {**draw(LOGINS), **draw(REST)}
    if envelope is SinkEnvelope.TRANSACTIONS:
        format = SinkFormat.JSON
    elif format is not SinkFormat.JSON or draw(st.booleans()):
        options |= {"schema_registry": REGISTRY, "subject_strategy": SubjectStrategy.TOPIC_RECORD}
    if envelope is SinkEnvelope.DEBEZIUM:
        options["tombstones"] = draw(st.booleans())
        options["json_schemas"] = format is SinkFormat.JSON and "schema_registry" not in options
    if table is not None and envelope is not SinkEnvelope.TRANSACTIONS:
        options["key"] = draw(COLUMNS)
    if envelope is not SinkEnvelope.TRANSACTIONS and options.get("positions_topic") is None:
        options["delivery"] = draw(st.sampled_from(Delivery))
    redact = draw(st.dictionaries(NAMES, METHODS, max_size=3))
    options["redact"] = redact
    if "hash" in redact.values():
        options["redact_key"] = draw(REFERENCES)
    one_topic = envelope is SinkEnvelope.TRANSACTIONS or (
        draw(st.booleans()) and (table is not None or envelope is not SinkEnvelope.UPSERT)
    )
    options |= {"topic": "t.x"} if one_topic else {"topic_prefix": draw(st.sampled_from(["", "shop."]))}
    return KafkaSink.of("out", "shop", table, broker="k1:9092,k2", format=format, envelope=envelope, **kept(options))


@settings(max_examples=200, deadline=None)
@given(sinks())
def test_sinks_round_trip(sink: KafkaSink) -> None:
    statement = parsed(sink_statement(sink))
    assert isinstance(statement, CreateSink)
    assert described_sink(statement) == sink
    assert KafkaSink.model_validate_json(sink.model_dump_json()) == sink
    given = sink.model_dump(exclude={"name", "source", "table"})
    assert KafkaSink.of(sink.name, sink.source, sink.table, **given) == sink, "as when literal secrets are sealed"


def test_statement_of_a_sink() -> None:
    whole = sink(
        key=("id",),
        format="avro",
        schema_registry=REGISTRY,
        envelope="debezium",
        redact={"card": "Last Four", "email": "hash", "x": "FIXED:***"},
        redact_key="env:KEY",
        rename_columns={"a": "my a"},
        exclude_columns=("notes",),
        snapshot=False,
    )
    assert sink_statement(whole) == (
        "CREATE SINK orders_out FROM shop.orders INTO KAFKA\n  BROKER 'k1:9092'\n  TOPIC 'orders'\n  KEY (id)\n"
        f"  FORMAT AVRO\n  USING SCHEMA REGISTRY '{REGISTRY}'\n  ENVELOPE DEBEZIUM\n  WITH (\n    snapshot = false,\n"
        '    exclude columns = (notes),\n    rename columns = (a = "my a"),\n'
        "    redact = (card = 'last four', email = 'hash', x = 'fixed:***'),\n    redact key = 'env:KEY'\n  );"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": None}, "missing TOPIC clause"),
        ({"broker": None}, 'missing option "broker"'),
        ({"format": "protobuf", "envelope": "debezium"}, "ENVELOPE DEBEZIUM is not available in FORMAT PROTOBUF"),
        ({"format": "protobuf"}, "FORMAT PROTOBUF requires a schema registry"),
        ({"envelope": "transactions", "key": "id"}, "KEY is invalid with ENVELOPE TRANSACTIONS"),
        ({"envelope": "transactions", "schema_registry": REGISTRY}, "has no registered schema"),
        ({"table": None}, "ENVELOPE UPSERT requires a topic per table"),
        ({"table": None, "topic": None, "topic_prefix": "p.", "key": "id"}, "KEY requires a single table"),
        ({"json_schemas": True}, 'option "json_schemas" requires FORMAT JSON and ENVELOPE DEBEZIUM'),
        ({"tombstones": False, "envelope": "changes"}, 'option "tombstones" requires ENVELOPE DEBEZIUM'),
        ({"subject_strategy": "record"}, 'option "subject_strategy" requires a schema registry'),
        ({"delivery": "at most once"}, 'invalid value for option "delivery"'),
        ({**LEAST, "envelope": "transactions"}, "ENVELOPE TRANSACTIONS requires option \"delivery\" 'exactly once'"),
        ({**LEAST, "transform": "a:b"}, 'option "transform" requires option "delivery" \'exactly once\''),
        (
            {**LEAST, "envelope": "debezium", "provide_transaction_metadata": True},
            'option "provide_transaction_metadata" requires option "delivery" \'exactly once\'',
        ),
        ({**LEAST, "positions_topic": "p"}, 'option "positions_topic" requires option "delivery" \'exactly once\''),
        ({"include_columns": ("a",), "key": ("b",)}, 'KEY column "b" is not among the columns'),
        ({"include_columns": ("a",), "rename_columns": {"b": "c"}}, 'column "b" in option "rename_columns"'),
        ({"redact": {"card": "rot13"}}, 'unrecognized redaction of column "card"'),
        ({"retain_limit": "soon"}, "invalid duration"),
        ({"topik": "x"}, 'unrecognized option "topik" for a KAFKA sink'),
        ({"transform": "mask"}, 'invalid value for option "transform"'),
        ({"transform": "a:b", "envelope": "debezium"}, 'option "transform" is invalid with ENVELOPE DEBEZIUM'),
        ({"transform": "a:b", "table": None, "topic": None, "topic_prefix": "p."}, "requires a single table"),
        ({"where": "id > 1", "table": None, "topic": None, "topic_prefix": "p."}, "requires a single table"),
        ({"sasl_username": "me"}, 'a login requires option "sasl_mechanisms"'),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        sink(**options)
    assert message in caught.value.message
    assert caught.value.hint


def test_hashes_require_a_key_once_secrets_are_stored() -> None:
    hashed = sink(redact={"email": "hash"})
    with pytest.raises(UsageError, match='requires option "redact_key"'):
        hashed.require_secrets()
    sink(redact={"email": "hash"}, redact_key="env:KEY").require_secrets()


def test_records_and_subjects() -> None:
    prefixed = {"topic": None, "topic_prefix": "shop.", "schema_registry": REGISTRY}
    assert sink().subjects("t", UPSTREAM, has_key=True) == []
    assert sink(**prefixed).subjects("t", UPSTREAM, has_key=True) == ["t-key", "t-value"]
    records = sink(**prefixed, subject_strategy="record", envelope="debezium")
    assert records.subjects("t", UPSTREAM, has_key=True) == ["shop.public.orders.Key", "shop.public.orders.Envelope"]
    both = sink(**prefixed, subject_strategy="topic record")
    assert both.subjects("t", UPSTREAM, has_key=False) == ["t-shop.public.orders.Value"]


def test_client_settings_have_secrets_and_no_consumer_settings(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    login = {"sasl_mechanisms": "PLAIN", "sasl_username": "me", "sasl_password": f"file:{password}"}
    assert sink(**login).client_settings() == {
        "bootstrap.servers": "k1:9092",
        "security.protocol": "SASL_SSL",
        "client.id": "penstock",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hunter2",
    }
    assert "hunter2" not in repr(sink(**login)) + sink(**login).model_dump_json()


def test_registry_address() -> None:
    assert sink().registry() is None
    login = {"schema_registry_username": "me", "schema_registry_password": "env:REGISTRY"}
    address = sink(schema_registry=REGISTRY, **login).registry()
    assert address is not None
    assert (address.url, address.username, address.password) == (REGISTRY, "me", "env:REGISTRY")


def test_limit_of_retained_history() -> None:
    assert sink().retain_limit_span() is None
    assert sink(retain_limit="2 days").retain_limit_span() == timedelta(days=2)


def test_alterable_options_exist_and_others_have_a_reason() -> None:
    options = {*KafkaSinkSqlOptions.model_fields, *KafkaSinkOptions.model_fields}
    assert options >= KafkaSink.ALTERABLE
    assert KafkaSink.ALTERABLE.isdisjoint({"format", "envelope", "topic", "key", "redact", "partitions", "snapshot"})
    assert all(KafkaSink.why_fixed(option) for option in options - KafkaSink.ALTERABLE)


def test_a_sink_is_described_without_a_kafka_client() -> None:
    program = (
        "import sys; from penstock.sinks.kafka.spec import KafkaSink;"
        "assert not {'confluent_kafka', 'pyspark'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
