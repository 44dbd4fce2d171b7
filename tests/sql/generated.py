"""Hypothesis strategies for sources: any options that the models accept, with unusual names, quotes and characters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.sources.option_names import TableChoice, choice_text
from penstock.sources.postgres.options import (
    Heartbeat,
    NewTables,
    OnSchemaChange,
    OnUnrepresentable,
    Ownership,
    Partitions,
    PostgresSqlOptions,
    PostgresWithOptions,
    Rules,
    SnapshotMode,
    Watermarks,
)
from penstock.sql.statements import CreateSource
from penstock.sql.syntax.names import Inclusion, dotted_text
from tests.sql.kinds import (
    WHATS,
    Avro,
    Bare,
    Debezium,
    DebeziumUpsert,
    Json,
    KafkaSqlOptions,
    KafkaWithOptions,
    Mechanism,
    TransactionTopic,
    Upsert,
)

ODD = "aA0 .,;:'\"`\\()=-/*#$@%{}[]é日😀\n\r\t\x1f\u00a0\u2028"
TEXTS = st.one_of(st.text(ODD, max_size=12), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
WORDS = st.sampled_from(["a", "orders", "FROM", "with", "As", "for", "WHERE", "if", "true", "x1", "_", "Ünï", "a-b"])
NAMES = st.one_of(WORDS, TEXTS.filter(bool))
UPSTREAM = NAMES.filter(lambda name: "\x00" not in name)
ALIASES = UPSTREAM.filter(lambda name: "." not in name and "/" not in name)
DURATIONS = st.sampled_from(["0 s", "1 day", "90 minutes", "1 hour 30 min", "500 ms", "1.5 h", "  2 W"])
REFERENCES = st.sampled_from(["env:SHOP_PASSWORD", "file:/secrets/it's here", "file:/ö"])


def kept(given: dict[str, Any]) -> dict[str, Any]:
    """Remove options without a value."""
    return {key: value for key, value in given.items() if value is not None}


def accepted(model: Any, given: dict[str, Any]) -> Any:
    """Create a model; return None if it rejects the options."""
    try:
        return model(**kept(given))
    except UsageError:
        return None


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def connections(draw: st.DrawFn) -> str:
    text = TEXTS.filter(lambda each: each and "\x00" not in each)
    parts = kept({"host": draw(optional(st.just("db"))), "dbname": draw(optional(text)), "user": draw(optional(text))})
    url = st.sampled_from(["postgresql://penstock@db:5432/shop", "postgresql:///it%27s", "service=shop"])
    return draw(url) if not parts else make_conninfo("", **parts)


TABLES = st.builds(TableChoice, st.builds(TableName, UPSTREAM, UPSTREAM), optional(ALIASES)).map(choice_text)
EXCLUDED = st.lists(st.tuples(UPSTREAM, UPSTREAM), max_size=3, unique=True).map(
    lambda names: tuple(map(dotted_text, names))
)
COLUMNS = st.lists(st.tuples(UPSTREAM, UPSTREAM, UPSTREAM), max_size=3, unique=True).map(
    lambda names: tuple(map(dotted_text, names))
)

postgres_sql_options = (
    st.fixed_dictionaries(
        {
            "connection": connections(),
            "connections": st.none(),
            "password": optional(REFERENCES),
            "tables": optional(st.lists(TABLES, max_size=3).map(tuple)),
            "schemas": optional(st.lists(NAMES, max_size=3).map(tuple)),
        }
    )
    .flatmap(
        lambda one: st.one_of(
            st.just(one),
            st.lists(connections(), min_size=2, max_size=3).map(
                lambda several: {**one, "connection": None, "connections": tuple(several)}
            ),
        )
    )
    .map(lambda given: accepted(PostgresSqlOptions, given))
    .filter(lambda options: options is not None)
)

postgres_with_options = (
    st.fixed_dictionaries(
        {
            "new_tables": optional(st.sampled_from(NewTables)),
            "exclude_tables": optional(EXCLUDED),
            "exclude_columns": optional(COLUMNS),
            "text_columns": optional(COLUMNS),
            "on_schema_change": optional(st.sampled_from(OnSchemaChange)),
            "on_unrepresentable": optional(st.sampled_from(OnUnrepresentable)),
            "publication_ownership": optional(st.sampled_from(Ownership)),
            "slot_ownership": optional(st.sampled_from(Ownership)),
            "rules": optional(st.sampled_from(Rules)),
            "slot_temporary": optional(st.booleans()),
            "two_phase": optional(st.booleans()),
            "failover": optional(st.booleans()),
            "partitions": optional(st.sampled_from(Partitions)),
            "heartbeat": optional(st.sampled_from(Heartbeat)),
            "heartbeat_interval": optional(st.floats(0.1, 3600)),
            "snapshot": optional(st.sampled_from(SnapshotMode)),
            "snapshot_wait": optional(DURATIONS),
            "snapshot_sessions": optional(st.integers(0, 100)),
            "snapshot_rate": optional(st.sampled_from(("20 MB", "512 kB"))),
            "chunk_rows": optional(st.integers(1, 10**30)),
            "chunk_pause": optional(DURATIONS),
            "watermarks": optional(st.sampled_from(Watermarks)),
            "publication": optional(TEXTS),
            "slot": optional(st.from_regex(r"[a-z0-9_]{1,63}", fullmatch=True)),
            "log": optional(st.just("kafka://broker:9092")),
            "retain_history": optional(DURATIONS),
        }
    )
    .map(lambda given: accepted(PostgresWithOptions, given))
    .filter(lambda options: options is not None)
)

FORMATS = st.one_of(st.builds(Avro, registry=optional(TEXTS)), st.just(Json()))
ENVELOPES = st.one_of(
    st.just(Bare()),
    st.just(Upsert()),
    st.just(DebeziumUpsert()),
    st.builds(Debezium, transaction_metadata=optional(st.builds(TransactionTopic, topic=TEXTS))),
)
INCLUDED = st.lists(
    st.builds(Inclusion, st.sampled_from(WHATS), optional(NAMES)), max_size=5, unique_by=lambda each: each.what
).map(tuple)

kafka_sql_options = (
    st.fixed_dictionaries(
        {
            "broker": TEXTS,
            "topic": TEXTS,
            "format": optional(FORMATS),
            "key_format": optional(FORMATS),
            "value_format": optional(FORMATS),
            "include": INCLUDED,
            "envelope": ENVELOPES,
            "read_only": st.booleans(),
        }
    )
    .map(lambda given: accepted(KafkaSqlOptions, given))
    .filter(lambda options: options is not None)
)

kafka_with_options = st.builds(
    KafkaWithOptions,
    start_offset=st.lists(st.integers(), max_size=3).map(tuple),
    start_at=st.dictionaries(st.integers(), st.integers(), max_size=2),
    ssl_ca_location=optional(TEXTS),
    sasl_mechanisms=optional(st.sampled_from(Mechanism)),
    sasl_username=optional(TEXTS),
    sasl_password=optional(REFERENCES),
    fetch=st.integers(0, 2**63 - 1),
    poll_timeout=st.timedeltas(timedelta(0), timedelta(days=3650)),
    properties=st.dictionaries(TEXTS, TEXTS, max_size=3),
    sample=st.floats(0, allow_infinity=False),
    order=st.sampled_from(["time", "arrival"]),
    mechanisms=st.lists(st.sampled_from(Mechanism), max_size=2).map(tuple),
    strict=st.booleans(),
)

sources = st.one_of(
    st.builds(CreateSource, NAMES, st.just("POSTGRES"), postgres_sql_options, postgres_with_options),
    st.builds(CreateSource, NAMES, st.just("KAFKA"), kafka_sql_options, kafka_with_options),
)
