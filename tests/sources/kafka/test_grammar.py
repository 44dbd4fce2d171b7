"""SQL syntax of the options: documented examples parse, and options round-trip."""

from __future__ import annotations

from typing import ClassVar

import pytest

from penstock.errors import UsageError
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions, StartPoint
from penstock.sql.grammar import parse
from penstock.sql.statements import CreateSource
from penstock.sql.syntax.options import Written, options_of, written_clauses, written_settings

STATEMENT = """
CREATE SOURCE clicks FROM KAFKA BROKER 'k1:9092,k2:9092' TOPIC 'clicks'
  KEY FORMAT AVRO VALUE FORMAT AVRO USING SCHEMA REGISTRY 'http://registry:8081'
  INCLUDE KEY, PARTITION AS p
  ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 'clicks.transactions')
  WITH (start offset = (1, 2), ssl ca location = '/ca.crt', sasl mechanisms = 'SCRAM-SHA-512', sasl username = 'u',
        sasl password = 'file:/password')
"""


class Kafka:
    """The part of the source kind that the grammar needs."""

    NAME: ClassVar[str] = "KAFKA"
    SqlOptions: ClassVar[type[KafkaSqlOptions]] = KafkaSqlOptions
    WithOptions: ClassVar[type[KafkaWithOptions]] = KafkaWithOptions


KINDS: dict[str, Written] = {"KAFKA": Kafka}


def read(text: str) -> tuple[KafkaSqlOptions, KafkaWithOptions]:
    statement = parse(text, KINDS)
    assert isinstance(statement, CreateSource)
    what, how = statement.sql_options, statement.with_options
    assert isinstance(what, KafkaSqlOptions)
    assert isinstance(how, KafkaWithOptions)
    return what, how


def written(what: KafkaSqlOptions, how: KafkaWithOptions) -> str:
    settings = ", ".join(written_settings(how))
    return f"CREATE SOURCES clicks FROM KAFKA {' '.join(written_clauses(what))} WITH ({settings})"


def test_documented_example_round_trips() -> None:
    what, how = read(STATEMENT)
    assert what.envelope.kind is EnvelopeKind.DEBEZIUM
    assert what.envelope.transaction_metadata_topic == "clicks.transactions"
    assert (what.schema_registry, how.start_offset) == ("http://registry:8081", (1, 2))
    assert how.secrets()["sasl_password"].reference == "file:/password"
    assert read(written(what, how)) == (what, how)


def test_other_notations() -> None:
    text = "CREATE SOURCES c FROM KAFKA BROKER 'k' TOPIC 't' KEY FORMAT TEXT VALUE FORMAT JSON ENVELOPE DEBEZIUM UPSERT"
    what, how = read(f"{text} WITH (start offset = latest, on error = quarantine)")
    assert what.envelope.kind is EnvelopeKind.DEBEZIUM_UPSERT
    assert how.start_offset is StartPoint.LATEST
    assert read(written(what, how)) == (what, how)


def test_plaintext_secret_is_sealed_until_it_is_stored() -> None:
    login = "sasl mechanisms = 'PLAIN', sasl username = 'u', sasl password = 'hunter2'"
    text = f"CREATE SOURCES c FROM KAFKA BROKER 'k' TOPIC 't' VALUE FORMAT JSON WITH ({login}"
    with pytest.raises(UsageError, match='"sasl password" contains a literal secret') as caught:
        parse(f"{text})", KINDS)
    assert "hunter2" not in str(caught.value)
    statement = parse(f"{text}, allow literal secrets = true)", KINDS)
    assert isinstance(statement, CreateSource)
    assert "hunter2" not in repr(statement)
    options = statement.with_options
    assert isinstance(options, KafkaWithOptions)
    with pytest.raises(UsageError, match='requires option "sasl_password"'):
        options.require_secrets()
    KafkaWithOptions.model_validate({**options.model_dump(), "sasl_password": "file:/kept"}).require_secrets()


def test_every_option_has_sql_syntax() -> None:
    assert {option.field for option in options_of(KafkaWithOptions)} == set(KafkaWithOptions.model_fields)
    assert {option.field for option in options_of(KafkaSqlOptions)} == set(KafkaSqlOptions.model_fields)
