"""A Kafka source as a value: written as SQL and parsed again, stored, altered; and the cost of loading the kind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.sources.kafka.sql_sources import described
from tests.sql.generated import NAMES, REFERENCES, TEXTS, kept, optional

from penstock.errors import UsageError
from penstock.executor import parsed, statement_of
from penstock.fields import with_fields
from penstock.formats.format import AvroFormat, Extra, Nanoseconds
from penstock.kafka_client.settings import registry_address
from penstock.kafka_client.tls import Mechanism
from penstock.model import IncludedColumn, TableName
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.message_formats import (
    AvroOptions,
    BytesOptions,
    CsvOptions,
    JsonOptions,
    ProtobufOptions,
    TextOptions,
)
from penstock.sources.kafka.option_syntax import GivenColumn
from penstock.sources.kafka.resolved_formats import TopicFormats
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.kafka.sql_options import EnvelopeKind, Metadata
from penstock.sources.kafka.topic_table import SourceTopic, TopicTable
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import IsolationLevel, OnError, TimestampType
from penstock.sources.kinds import kind
from penstock.sql.statements import CreateSource
from penstock.sql.syntax.names import Inclusion

TYPES = st.recursive(
    st.sampled_from(["bigint", "int", "string", "double", "boolean", "date", "timestamp", "decimal(10, 2)", "binary"]),
    lambda inner: st.one_of(
        inner.map(lambda of: f"array<{of}>"),
        inner.map(lambda of: f"map<string, {of}>"),
        st.tuples(inner, inner).map(lambda of: f"struct<`a b`: {of[0]}, `order`: {of[1]}>"),
    ),
    max_leaves=3,
)
COLUMNS = st.lists(
    st.builds(GivenColumn, NAMES.filter(lambda name: "\x00" not in name), TYPES),
    max_size=3,
    unique_by=lambda column: column.name.lower(),
).map(tuple)
TOPICS = st.sampled_from(["clicks", "shop.public.orders", "a-b_c"])
STARTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"start_offset": st.one_of(st.just("latest"), st.just((0, 2**63 - 1)))}),
    st.fixed_dictionaries({"kafka_time_offset": st.integers(-(2**40), 2**40)}),
    st.fixed_dictionaries({"start_timestamp": st.just("2026-11-16T03:00:00+00:00")}),
    st.just({}),
)
LOGINS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "sasl_mechanisms": st.sampled_from([m for m in Mechanism if m.has_password]),
            "sasl_username": TEXTS.filter(bool),
            "sasl_password": REFERENCES,
            "ssl_ca_location": optional(st.just("/it's/ca.crt")),
        }
    ),
)
REST = st.fixed_dictionaries(
    {
        "isolation_level": optional(st.sampled_from(IsolationLevel)),
        "timestamp_type": optional(st.sampled_from(TimestampType)),
        "timestamp_frequency_ms": optional(st.integers(10, 3_600_000)),
        "log": optional(st.just("kafka://broker:9092")),
        "retain_history": optional(st.just("2 days")),
    }
)


def formats(by_debezium: bool, registry: bool) -> st.SearchStrategy[Any]:
    """Draw a format that is valid for the envelope, with or without a registry."""
    named: dict[str, Any] = {"subject": optional(TEXTS.filter(bool))} if registry else {}
    json: dict[str, Any] = {"schemas_enabled": st.booleans()} if by_debezium else {}
    if not by_debezium:
        json["extra_fields"] = st.sampled_from(Extra)
    schema = optional(TEXTS) if registry else TEXTS
    descriptor = st.sampled_from(["/shop.desc", "CgA="])
    return st.one_of(
        st.builds(AvroOptions, reader_schema=schema, **named),
        st.builds(JsonOptions, columns=COLUMNS, **json, **named),
        st.builds(JsonOptions, columns=COLUMNS, without_registry=st.just(registry), **json),
        st.builds(
            ProtobufOptions,
            message=st.just("shop.Item"),
            descriptor=optional(descriptor) if registry else descriptor,
            nanoseconds=st.sampled_from(Nanoseconds),
            **named,
        ),
        st.builds(
            CsvOptions, columns=st.one_of(COLUMNS.filter(bool), st.integers(1, 99)), delimiter=st.sampled_from(",;'")
        ),
        st.just(TextOptions()),
        st.just(BytesOptions()),
    )


@st.composite
def sources(draw: st.DrawFn) -> KafkaSource:
    """Draw a valid source."""
    envelope, registry = draw(st.sampled_from(EnvelopeKind)), draw(st.booleans())
    by_debezium = "debezium" in envelope
    written = formats(by_debezium, registry)
    options: dict[str, Any] = {**draw(STARTS), **draw(LOGINS), **draw(REST)}
    if envelope is EnvelopeKind.NONE and draw(st.booleans()):
        options["format"] = draw(written)
    else:
        options |= {"value_format": draw(written), "key_format": draw(written)}
    whats = [str(what) for what in Metadata if what is not Metadata.KEY or "key_format" in options]
    included = st.lists(st.builds(Inclusion, st.sampled_from(whats), optional(NAMES)), unique_by=lambda each: each.what)
    options["include"] = tuple(draw(included))
    options["envelope"] = {"kind": envelope}
    if by_debezium:
        options["envelope"]["transaction_metadata_topic"] = draw(optional(st.just("transactions")))
    if draw(st.booleans()):
        options |= {"on_error": OnError.QUARANTINE, "quarantine_limit": draw(optional(st.integers(1, 10**12)))}
    if registry:
        options["schema_registry"] = "https://registry:8081"
        if draw(st.booleans()):
            options |= {"schema_registry_username": "me", "schema_registry_password": draw(REFERENCES)}
    if isinstance(options.get("start_offset"), tuple) or draw(st.booleans()):
        options["topic"] = draw(TOPICS)
    else:
        options["topics"] = tuple(draw(st.lists(TOPICS, min_size=1, unique=True)))
    try:
        return KafkaSource.of("clicks", broker="k1:9092,k2:9092", **kept(options))
    except UsageError as error:  # no format uses the registry, or two columns have one name
        assume(
            "no format uses the schema registry" not in error.message
            and "specified more than once" not in error.message
        )
        raise


@settings(max_examples=200, deadline=None)
@given(sources())
def test_sources_round_trip(source: KafkaSource) -> None:
    statement = parsed(statement_of(source))
    assert isinstance(statement, CreateSource)
    assert KafkaSource.from_options(statement.name, statement.sql_options, statement.with_options) == source
    assert KafkaSource.model_validate_json(source.model_dump_json()) == source
    assert KafkaSource.of(source.name, **source.model_dump(exclude={"name"})) == source, (
        "as when literal secrets are sealed"
    )


def test_literal_secret_is_replaced_by_a_reference() -> None:
    """A plaintext secret of a statement is stored separately, and the source is recreated with a reference to it."""
    login = "sasl mechanisms = 'PLAIN', sasl username = 'u', sasl password = 'hunter2', allow literal secrets"
    statement = parsed(f"CREATE SOURCE c FROM KAFKA BROKER 'k' TOPIC 't' FORMAT TEXT WITH ({login})")
    assert isinstance(statement, CreateSource)
    source = KafkaSource.from_options(statement.name, statement.sql_options, statement.with_options)
    with pytest.raises(UsageError, match='requires option "sasl_password"'):
        source.create_instances(1)
    whole = KafkaSource.of(source.name, **{**source.model_dump(exclude={"name"}), "sasl_password": "file:/kept"})
    assert "sasl password = 'file:/kept'" in statement_of(whole)
    assert "allow" not in statement_of(whole)


@pytest.mark.parametrize("option", ["cache", "enable_auto_commit", "ignore_source_keys"])
def test_unsupported_options_are_rejected(option: str) -> None:
    with pytest.raises(UsageError, match=f'option "{option}" is not supported') as caught:
        KafkaSource.of("c", broker="k", topic="t", format="text", **{option: True})
    assert "Remove the option" in caught.value.hint


class TestAltered:
    """Options that can be altered, and take effect in the instance."""

    CLAUSES = "KEY FORMAT TEXT VALUE FORMAT AVRO SCHEMA '\"long\"' USING SCHEMA REGISTRY 'https://r' ENVELOPE UPSERT"

    def config(self, source: KafkaSource) -> KafkaConfig:
        formats = TopicFormats(
            source.what(), registry_address(source.schema_registry, source.how()), "t", lambda: iter(())
        )
        topic = SourceTopic(name="t", id=None, offsets=(0,))
        name = TableName("topic", "t")
        included = (IncludedColumn("offset", "offset"),)
        table = TopicTable.create(name, "c", topic, formats.key(), formats.value(), EnvelopeKind.UPSERT, included)
        return KafkaConfig.create("c", source.what(), source.how(), [table])

    def test_all_alterable_options(self) -> None:
        source = described(f"CREATE SOURCE c FROM KAFKA BROKER 'k' TOPIC 't' {self.CLAUSES} WITH (on error = stop)")
        config = self.config(source)
        assert config.altered(source) == config
        changes: dict[str, Any] = {
            **{"retain_history": "3 days", "on_error": "quarantine", "quarantine_limit": 5, "client_id": "me"},
            **{
                "timestamp_frequency_ms": 50,
                "sasl_mechanisms": "PLAIN",
                "sasl_username": "u",
                "sasl_password": "env:P",
            },
            **{"schema_registry_username": "r", "schema_registry_password": "env:R"},
        }
        assert set(changes) <= source.ALTERABLE
        requested = KafkaSource.of("c", **{**source.model_dump(exclude={"name"}), **changes})
        altered = config.altered(requested)
        assert altered.how == requested.how()
        assert altered.retain_history == "3 days"
        (table,) = altered.produced()
        assert isinstance(table.value_format.format, AvroFormat)
        assert table.value_format.format.registry == registry_address(requested.schema_registry, requested.how())
        assert table.key_format == config.produced()[0].key_format
        assert KafkaConfig.model_validate_json(altered.model_dump_json()).altered(requested) == altered

    def test_registry_of_the_transaction_metadata(self) -> None:
        """It uses the same registry as the tables, and so the same login."""
        source = described(f"CREATE SOURCE c FROM KAFKA BROKER 'k' TOPIC 't' {self.CLAUSES}")
        config = self.config(source)
        metadata = TransactionMetadata(
            topic=SourceTopic(name="m", id=None, offsets=(0,)), format=config.produced()[0].value_format
        )
        requested = KafkaSource.of(
            "c",
            **source.model_dump(exclude={"name", "schema_registry_username", "schema_registry_password"}),
            schema_registry_username="r",
            schema_registry_password="env:R",
        )
        altered = with_fields(config, metadata=metadata).altered(requested)
        assert altered.metadata is not None
        assert isinstance(altered.metadata.format.format, AvroFormat)
        assert altered.metadata.format.format.registry == registry_address(requested.schema_registry, requested.how())
        assert altered.metadata.topic == metadata.topic
        assert KafkaConfig.model_validate_json(altered.model_dump_json()) == altered

    def test_fixed_options_have_a_reason(self) -> None:
        fixed = set(KafkaSource.WithOptions.model_fields) - KafkaSource.ALTERABLE
        assert {"start_offset", "start_timestamp", "kafka_time_offset", "isolation_level"} <= fixed
        assert all(KafkaSource.why_fixed(option) for option in fixed)
        assert "started" in KafkaSource.why_fixed("start_offset")


def test_kind_loads_without_its_clients() -> None:
    """Kinds are loaded for every statement, so they must not import Kafka's clients, Spark, decoders or numba."""
    heavy = "('confluent_kafka', 'pyspark', 'numba', 'penstock.formats.batch', 'penstock.envelopes')"
    program = (
        "import sys; from penstock.sources.kafka.kind import KIND; assert KIND.name == 'KAFKA';"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert kind("KAFKA").source is KafkaSource
