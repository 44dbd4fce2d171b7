"""SHOW CREATE and parse are inverse to each other."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.executor import described_source, statement_of
from penstock.sources.postgres.options import PostgresSqlOptions, PostgresWithOptions, SnapshotMode
from penstock.sources.postgres.spec import PostgresSource
from penstock.sql.grammar import parse
from penstock.sql.statements import CreateSource, written_source
from tests.sql.generated import postgres_sql_options, postgres_with_options, sources
from tests.sql.kinds import KINDS, Avro, Debezium, KafkaSqlOptions, KafkaWithOptions, TransactionTopic


def written(source: CreateSource) -> str:
    return written_source(source.name, source.kind, source.sql_options, source.with_options)


@settings(max_examples=200, deadline=None)
@given(sources)
def test_rendered_source_parses_to_the_same_source(source: CreateSource) -> None:
    tables, excluded = getattr(source.sql_options, "tables", ()), getattr(source.with_options, "exclude_tables", ())
    assume(not (tables and excluded))
    text = written(source)
    assert parse(text, KINDS) == source
    assert parse(text.rstrip(";") + " -- a comment", KINDS) == source


@settings(max_examples=100, deadline=None)
@given(st.from_regex(r"[a-z][a-z0-9_]{0,40}", fullmatch=True), postgres_sql_options, postgres_with_options)
def test_statement_of_a_source_creates_the_same_source(
    name: str, sql_options: PostgresSqlOptions, with_options: PostgresWithOptions
) -> None:
    assume(not (sql_options.tables and with_options.exclude_tables))
    source = PostgresSource.from_options(name, sql_options, with_options)
    statement = parse(statement_of(source), KINDS)
    assert isinstance(statement, CreateSource)
    assert described_source(statement) == source


def test_defaults_are_not_rendered() -> None:
    options = PostgresSqlOptions(connection="postgresql://penstock@db/shop")
    assert written_source("shop", "POSTGRES", options, PostgresWithOptions()) == (
        "CREATE SOURCES shop FROM POSTGRES\n  CONNECTION 'postgresql://penstock@db/shop'\n  FOR ALL TABLES;"
    )


def test_layout_of_a_statement() -> None:
    sql_options = PostgresSqlOptions(
        connection="postgresql://penstock@db/shop", password="env:PW", tables=("public.orders AS orders", '"a b".c')
    )
    with_options = PostgresWithOptions(
        snapshot=SnapshotMode.CHUNKED, exclude_columns=("public.users.hash",), two_phase=True
    )
    assert (
        written_source("my shop", "POSTGRES", sql_options, with_options)
        == """\
CREATE SOURCES "my shop" FROM POSTGRES
  CONNECTION 'postgresql://penstock@db/shop'
  PASSWORD 'env:PW'
  FOR TABLES (public.orders AS orders, "a b".c)
  WITH (
    exclude columns = (public.users.hash),
    two phase = true,
    snapshot = 'chunked'
  );"""
    )


def test_nested_models_are_rendered() -> None:
    sql_options = KafkaSqlOptions(
        broker="k:9092",
        topic="it's",
        format=Avro(registry="http://r"),
        envelope=Debezium(transaction_metadata=TransactionTopic(topic="tx")),
        read_only=True,
    )
    assert (
        written_source("clicks", "KAFKA", sql_options, KafkaWithOptions(start_at={0: 5}))
        == """\
CREATE SOURCES clicks FROM KAFKA
  BROKER 'k:9092'
  TOPIC 'it''s'
  FORMAT AVRO USING SCHEMA REGISTRY 'http://r'
  ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 'tx')
  READ ONLY
  WITH (
    start at = (0 = 5)
  );"""
    )
