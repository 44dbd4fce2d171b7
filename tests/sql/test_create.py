"""CREATE SOURCES: clauses and settings are parsed into the two models of the kind; secrets are kept separately."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from penstock.sources.load_generator.source import LoadSource
from penstock.sources.postgres.options import PostgresSqlOptions, PostgresWithOptions, SnapshotMode
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from penstock.sql.statements import AlterSet, CreateSource, Explain
from penstock.sql.syntax.names import Inclusion
from tests.sql.kinds import (
    KINDS,
    Avro,
    Debezium,
    DebeziumUpsert,
    Json,
    KafkaSqlOptions,
    KafkaWithOptions,
    LoadSqlOptions,
    LoadWithOptions,
    Mechanism,
    TransactionTopic,
    Upsert,
)

SHOP = "CREATE SOURCES shop FROM POSTGRES CONNECTION 'postgresql://penstock@db:5432/shop'"
CLICKS = "CREATE SOURCE clicks FROM KAFKA BROKER 'k1:9092,k2:9092' TOPIC 'clicks'"


def created(text: str) -> Any:
    statement = parse(text, KINDS)
    assert isinstance(statement, CreateSource)
    return statement


def test_postgres_example() -> None:
    found = created(
        f"""{SHOP} PASSWORD 'env:SHOP_PASSWORD'
          FOR ALL TABLES                        -- or FOR SCHEMAS (a, b)
          WITH (publication = 'penstock_shop', slot = 'penstock_shop',
                exclude columns = (public.users.password_hash), text columns = (public.ledger.amount),
                snapshot = 'chunked', retain history = '2 days', chunk rows = 500);"""
    )
    assert found == CreateSource(
        "shop",
        "POSTGRES",
        PostgresSqlOptions(connection="postgresql://penstock@db:5432/shop", password="env:SHOP_PASSWORD"),
        PostgresWithOptions(
            publication="penstock_shop",
            slot="penstock_shop",
            exclude_columns=("public.users.password_hash",),
            text_columns=("public.ledger.amount",),
            snapshot=SnapshotMode.CHUNKED,
            retain_history="2 days",
            chunk_rows=500,
        ),
    )


@pytest.mark.parametrize(
    ("clauses", "options"),
    [
        ("FOR SCHEMAS (a, `B c`)", {"schemas": ("a", "B c")}),
        ("FOR TABLES ()", {}),
        (
            'FOR TABLES (public.orders AS orders, public.users, "My S"."a.b" AS `it"s`)',
            {"tables": ("public.orders AS orders", "public.users", '"My S"."a.b" AS "it""s"')},
        ),
        ("FOR TABLES (s.for, s.table as t)", {"tables": ("s.for", "s.table AS t")}),
        ("for tables (Public.Users)", {"tables": ("Public.Users",)}),
        ("", {}),
    ],
)
def test_selection_of_tables(clauses: str, options: dict[str, Any]) -> None:
    found = created(f"{SHOP} {clauses}").sql_options
    assert found == PostgresSqlOptions(connection="postgresql://penstock@db:5432/shop", **options)


def test_shards() -> None:
    shards = ("postgresql://db/s1", "postgresql://db/s2")
    text = "CREATE SOURCES shards FROM POSTGRES CONNECTIONS ('postgresql://db/s1', 'postgresql://db/s2') FOR ALL TABLES"
    assert created(text).sql_options == PostgresSqlOptions(connections=shards)


@pytest.mark.parametrize(
    ("clauses", "options"),
    [
        (
            "KEY FORMAT AVRO VALUE FORMAT AVRO USING SCHEMA REGISTRY 'http://registry:8081' ENVELOPE UPSERT",
            {"key_format": Avro(), "value_format": Avro(registry="http://registry:8081"), "envelope": Upsert()},
        ),
        ("FORMAT JSON", {"format": Json()}),
        ("ENVELOPE NONE FORMAT JSON", {"format": Json()}),
        ("ENVELOPE DEBEZIUM", {"envelope": Debezium()}),
        ("ENVELOPE DEBEZIUM UPSERT READ ONLY", {"envelope": DebeziumUpsert(), "read_only": True}),
        ("READ ONLY false", {}),
        (
            "ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 't') FORMAT JSON",
            {"envelope": Debezium(transaction_metadata=TransactionTopic(topic="t")), "format": Json()},
        ),
        (
            "INCLUDE KEY, PARTITION AS p, OFFSET, timestamp as `at`, HEADERS ENVELOPE UPSERT",
            {
                "include": (
                    Inclusion("key"),
                    Inclusion("partition", "p"),
                    Inclusion("offset"),
                    Inclusion("timestamp", "at"),
                    Inclusion("headers"),
                ),
                "envelope": Upsert(),
            },
        ),
    ],
)
def test_kafka_clauses(clauses: str, options: dict[str, Any]) -> None:
    found = created(f"{CLICKS} {clauses}").sql_options
    assert found == KafkaSqlOptions(broker="k1:9092,k2:9092", topic="clicks", **options)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("", {}),
        ("ssl ca location = '/ca.pem'", {"ssl_ca_location": "/ca.pem"}),
        ("SSL_CA_LOCATION = 'it''s \\ a path'", {"ssl_ca_location": "it's \\ a path"}),
        ("sasl mechanisms = 'SCRAM-SHA-512', sasl username = 'u'", {"sasl_mechanisms": Mechanism.SCRAM}),
        ("sasl mechanisms = plain", {"sasl_mechanisms": Mechanism.PLAIN}),
        ("sasl password = 'file:/secrets/kafka'", {"sasl_password": "file:/secrets/kafka"}),
        ("start offset = (0, 10, -2)", {"start_offset": (0, 10, -2)}),
        ("start offset = ()", {}),
        ("start at = (0 = 15, 1 = 20)", {"start_at": {0: 15, 1: 20}}),
        ("properties = ('a.b' = 'c', 'd' = '')", {"properties": {"a.b": "c", "d": ""}}),
        ("fetch = '16 MB'", {"fetch": 16 << 20}),
        ("poll timeout = '1 min 500 ms'", {"poll_timeout": timedelta(minutes=1, milliseconds=500)}),
        ("sample = 0.25", {"sample": 0.25}),
        ("sample = 1e-3", {"sample": 0.001}),
        ("order = Arrival", {"order": "arrival"}),
        ("mechanisms = ('plain', 'scram-sha-512')", {"mechanisms": (Mechanism.PLAIN, Mechanism.SCRAM)}),
        ("strict = off", {"strict": False}),
        ("strict = FALSE", {"strict": False}),
        ("strict", {}),
        ("strict = on", {}),
    ],
)
def test_settings_of_every_type(settings: str, options: dict[str, Any]) -> None:
    if "username" in settings:
        options = {**options, "sasl_username": "u"}
    assert created(f"{CLICKS} WITH ({settings})").with_options == KafkaWithOptions(**options)


def test_kind_with_a_name_of_two_words() -> None:
    assert created("CREATE SOURCE load FROM LOAD GENERATOR RATE 7") == CreateSource(
        "load", "LOAD GENERATOR", LoadSqlOptions(rate=7), LoadWithOptions()
    )
    assert created('CREATE SOURCE IF NOT EXISTS "from" FROM load generator').name == "from"


def test_if_not_exists() -> None:
    assert created(SHOP).if_not_exists is False
    assert created(SHOP.replace("shop", "IF NOT EXISTS shop", 1)).if_not_exists is True


@pytest.mark.parametrize("begin", ["EXPLAIN CREATE SOURCES", "EXPLAIN SOURCES", "explain source"])
def test_explain(begin: str) -> None:
    assert parse(SHOP.replace("CREATE SOURCES", begin), KINDS) == Explain(created(SHOP))


def test_set() -> None:
    found = parse("ALTER SOURCES shop SET (retain history = '2 days', chunk rows = 5, two phase)", KINDS)
    assert found == AlterSet("shop", {"retain_history": "2 days", "chunk_rows": 5, "two_phase": True})


def test_options_that_are_invalid_together_have_a_position() -> None:
    text = "CREATE SOURCE load FROM LOAD GENERATOR BANK WITH (rate = 5, users = 7)"
    with pytest.raises(SqlError, match="option users cannot be combined with BANK") as caught:
        parse(text, {"LOAD GENERATOR": LoadSource})
    assert caught.value.column == text.index("7") + 1


class TestSecrets:
    """A literal secret is rejected unless it is allowed; it is never shown."""

    def test_literal_secret_is_rejected(self) -> None:
        with pytest.raises(SqlError, match="PASSWORD contains a literal secret") as caught:
            parse(f"{SHOP} PASSWORD 'hunter2'", KINDS)
        assert "hunter2" not in str(caught.value) + repr(caught.value.args)
        assert "env:NAME" in caught.value.hint

    def test_literal_secret_can_be_allowed_and_is_kept_separately(self) -> None:
        for text in (f"{SHOP} PASSWORD 'hunter2'", f"{CLICKS} WITH (sasl password = 'hunter2', strict)"):
            allowing = text.replace("strict", "allow literal secrets") if "WITH" in text else None
            found = created(allowing or f"{text} WITH (allow literal secrets = true)")
            (secret,) = found.secrets.values()
            assert secret.get_secret_value() == "hunter2"
            assert "hunter2" not in repr(found) + str(found.sql_options) + str(found.with_options)

    def test_option_with_value_off_does_not_allow_it(self) -> None:
        with pytest.raises(SqlError, match="literal secret"):
            parse(f"{SHOP} PASSWORD 'hunter2' WITH (allow literal secrets = off)", KINDS)

    def test_alter_follows_the_same_rules(self) -> None:
        with pytest.raises(SqlError, match="literal secret"):
            parse("ALTER SOURCES clicks SET (sasl password = 'hunter2')", KINDS)
        found = parse("ALTER SOURCES clicks SET (sasl password = 'hunter2', allow literal secrets)", KINDS)
        assert isinstance(found, AlterSet)
        assert (found.options, list(found.secrets)) == ({}, ["sasl_password"])
        assert "hunter2" not in repr(found)

    @pytest.mark.parametrize(
        "clause",
        [
            "PASSWORD hunter2",
            "PASSWORD = 'hunter2'",
            "PASWORD 'hunter2'",
            'PASSWORD "hunter2"',
            "PASSWORD 'hunter2",
            "PASSWORD 'it''s hunter2' FOR",
            "CONNECTION 'postgresql://u:hunter2@db/shop'",
            "CONNECTION 'postgresql://u:hun/hunter2@db/shop'",
            "CONNECTION 'host=db password=hunter2'",
            "CONNECTION 'postgresql://db/shop?password=hunter2&x=y'",
            "CONNECTION 'postgresql://u@db PASSWORD 'hunter2'",
            "FOR ALL TABLE PASSWORD\n'hunter2'",
            "FOR ALL TABLE WITH (passwrd = 'hunter2')",
            "FOR ALL TABLE WITH (ssl_passphrase = 'hunter2')",
            "FOR ALL TABLE WITH (api token 'hunter2')",
        ],
    )
    def test_an_error_shows_no_secret(self, clause: str) -> None:
        with pytest.raises(SqlError) as caught:
            parse(f"CREATE SOURCES shop FROM POSTGRES {clause}", KINDS)
        assert "hunter2" not in str(caught.value) + repr(caught.value.args)


def test_error_can_be_pickled() -> None:
    with pytest.raises(SqlError) as caught:
        parse("SHOW SOURCES please", KINDS)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.line, copied.column) == (str(caught.value), 1, 14)
