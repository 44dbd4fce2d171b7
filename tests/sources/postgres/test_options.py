"""Options of a source: validated when it is created, and checked against the database by preflight."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.model import TableName
from penstock.name_suggestions import nearest
from penstock.sources.findings import errors_among
from penstock.sources.option_names import ColumnName, TableChoice, choice_text, parse_column, parse_table
from penstock.sources.postgres.spec import PostgresSource

URL = "postgresql://me@h/shop"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("public.orders", TableChoice(TableName("public", "orders"))),
        (" public.orders as Purchases ", TableChoice(TableName("public", "orders"), "Purchases")),
        ('"My Schema"."a.b" AS "x y"', TableChoice(TableName("My Schema", "a.b"), "x y")),
        ('s."say ""hi"""', TableChoice(TableName("s", 'say "hi"'))),
    ],
)
def test_table_names_are_parsed(text: str, choice: TableChoice) -> None:
    assert parse_table(text) == choice


def test_column_names_are_parsed() -> None:
    assert parse_column('public."T.1".c') == ColumnName(TableName("public", "T.1"), "c")
    assert str(parse_column("a.b.c")) == "a.b.c"


@pytest.mark.parametrize(
    "text", ["", "orders", "a.b.c.d", "a.b AS", 'a."b', "a.b AS x.y", 'a.b AS "x/y"', "a b.c", "a..b"]
)
def test_invalid_names_are_rejected(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_table(text)
    assert caught.value.hint
    with pytest.raises(UsageError):
        parse_column(text)


def test_nearest_name_is_suggested() -> None:
    assert nearest("public.oders", ["public.orders", "public.users"]) == "Did you mean public.orders?"
    assert nearest("x", ["public.orders"]) == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tables": ("a.b",), "schemas": ("c",)}, "tables and schemas cannot be used together"),
        ({"slot_ownership": "user"}, "a slot cannot decode with a newer publication"),
        ({"failover": True, "slot_temporary": True}, "temporary slot"),
        ({"partitions": "root", "rules": "strict"}, "not allowed with rules = strict"),
        ({"tables": ("a.b", "a.b AS c")}, "a.b is listed twice"),
        ({"tables": ("a.b AS x", "a.c AS X")}, "name x is listed twice"),
        ({"tables": ("b",)}, "invalid table name"),
        ({"exclude_columns": ("a.b",)}, "invalid column name"),
        ({"snapshot_rate": "fast"}, "invalid size"),
        ({"snapshot_rate": "0 MB"}, "snapshot_rate is zero"),
        ({"exclude_columns": ("a.b.c",), "text_columns": ("a.b.c",)}, "both exclude_columns and text_columns"),
        ({"slot": "My Slot"}, "invalid replication slot name"),
        ({"heartbeat_interval": 0}, "heartbeat_interval 0 is out of range"),
        ({"heartbeat": "sometimes"}, "heartbeat"),
        ({"rules": "loose"}, "rules"),
        ({"tabels": ("a.b",)}, 'unrecognized option "tabels"'),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        PostgresSource.from_url(URL, **options)
    assert caught.value.hint


def test_misspelt_option_suggests_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        PostgresSource.from_url(URL, exclude_colums=("a.b.c",))
    assert "exclude_columns" in caught.value.hint


def test_options_round_trip_through_json() -> None:
    source = PostgresSource.from_url(
        URL,
        "x",
        password="env:X",
        tables=("public.a AS b",),
        exclude_columns=("public.a.c",),
        text_columns=("public.a.d",),
        publication="p",
        publication_ownership="user",
        slot="s",
        slot_ownership="user",
        rules="strict",
        two_phase=True,
        failover=True,
        heartbeat="message",
        heartbeat_interval=3,
    )
    assert PostgresSource.model_validate_json(source.model_dump_json()) == source


# -- checked against the database --------------------------------------------------------------------------------------


@pytest.fixture
def shop(database: Any) -> Any:
    database.execute(
        "CREATE SCHEMA sales; CREATE TABLE orders (id int PRIMARY KEY, place point, note text);"
        " CREATE TABLE users (id int PRIMARY KEY); CREATE TABLE sales.deals (id int PRIMARY KEY);"
        " CREATE TABLE keyless (id int); CREATE VIEW v AS SELECT 1 AS id; CREATE MATERIALIZED VIEW m AS SELECT 1 AS id"
    )
    return database


def source(database: Any, **options: Any) -> PostgresSource:
    return PostgresSource.from_url(database.url, database.name, **options)


def names(source: PostgresSource) -> list[str]:
    return [str(table.name) for table in source.create_instances(1)[0].tables]


def test_tables_schemas_or_all(shop: Any) -> None:
    assert names(source(shop)) == ["public.orders", "public.users", "sales.deals"]  # keyless cannot be captured
    assert names(source(shop, schemas=("sales",))) == ["sales.deals"]
    assert names(source(shop, tables=("public.users AS people",))) == ["public.users"]
    (table,) = source(shop, tables=("public.users AS people",)).create_instances(1)[0].tables
    assert table.alias == "people"


@pytest.mark.parametrize(
    ("options", "why", "hint"),
    [
        ({"tables": ("public.oders",)}, "public.oders: table does not exist", "Did you mean public.orders?"),
        ({"schemas": ("sale",)}, "schema sale: does not exist, or has no tables", "Did you mean sales?"),
        ({"tables": ("public.v",)}, "public.v: is a view", "underlying tables"),
        ({"tables": ("public.m",)}, "public.m: is a materialized view", "underlying tables"),
        ({"tables": ("public.users", "public.keyless")}, "public.keyless: table has no primary key", "ADD PRIMARY KEY"),
        ({"exclude_columns": ("other.thing.zzz",)}, "no such column", "Name a column"),
        ({"exclude_columns": ("public.orders.plac",)}, "no such column", "Did you mean public.orders.place?"),
        ({"text_columns": ("public.orders.plac",)}, "no such column", "Did you mean public.orders.place?"),
        ({"exclude_columns": ("public.users.id",)}, "a column of the primary key", "Remove it from exclude_columns"),
        ({"slot_temporary": True}, "temporary slots are not supported", "slot_temporary"),
    ],
)
def test_selection_that_cannot_be_captured_is_rejected(shop: Any, options: dict[str, Any], why: str, hint: str) -> None:
    with pytest.raises(DefiniteError, match=why) as caught:
        source(shop, **options).create_instances(1)
    assert hint in caught.value.hint
    assert shop.execute("SELECT 1 FROM pg_publication") == []


def test_column_can_be_excluded_or_captured_as_text(shop: Any) -> None:
    assert "public.orders" in names(source(shop, exclude_columns=("public.orders.place",)))
    (config,) = source(shop, text_columns=("public.orders.place",)).create_instances(1)
    (orders,) = [table for table in config.tables if table.name.name == "orders"]
    assert [column.as_text for column in orders.columns] == [False, True, False]


def test_relations_that_are_not_tables_are_reported(shop: Any) -> None:
    found = source(shop).preflight()
    assert [(f.level.value, f.object) for f in found.server if f.object.startswith("public.")] == [("info", "public.m")]
    assert errors_among(found.server) == []


def test_partitioned_tables_by_name(database: Any) -> None:
    database.execute("CREATE TABLE c (id int PRIMARY KEY) PARTITION BY HASH (id)")
    database.execute("CREATE TABLE c1 PARTITION OF c FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    assert names(source(database, tables=("public.c1",))) == ["public.c1"]
    assert names(source(database, tables=("public.c",), partitions="root")) == ["public.c"]
    with pytest.raises(DefiniteError, match="a partitioned table cannot be captured"):
        source(database, tables=("public.c",)).create_instances(1)
    with pytest.raises(DefiniteError, match="a partition cannot be captured"):
        source(database, tables=("public.c1",), partitions="root").create_instances(1)


def test_partition_can_prevent_capture_of_its_root(database: Any) -> None:
    database.execute("CREATE TABLE c (id int PRIMARY KEY) PARTITION BY HASH (id)")
    database.execute("CREATE TABLE c1 PARTITION OF c FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    database.execute("ALTER TABLE c1 REPLICA IDENTITY NOTHING")
    with pytest.raises(DefiniteError, match=r"partition public\.c1: its replica identity is NOTHING"):
        source(database, partitions="root").create_instances(1)


def test_foreign_and_temporary_tables_are_not_captured(database: Any) -> None:
    database.execute(
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER far FOREIGN DATA WRAPPER w;"
        " CREATE FOREIGN TABLE f (id int) SERVER far; CREATE TABLE t (id int PRIMARY KEY)"
    )
    assert names(source(database)) == ["public.t"]
    assert "public.f" in {f.object for f in source(database).preflight().server if f.level.value == "info"}
    with pytest.raises(DefiniteError, match="is a foreign table"):
        source(database, tables=("public.f",)).create_instances(1)
    with database.connect() as session:
        session.execute("CREATE TEMP TABLE passing (id int PRIMARY KEY)")
        (schema,) = session.execute("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()").fetchone()
        assert names(source(database)) == ["public.t"]
        with pytest.raises(DefiniteError, match="is a temporary table"):
            source(database, tables=(f"{schema}.passing",)).create_instances(1)


def test_prepared_transactions_need_a_newer_server(database: Any) -> None:
    if database.version() >= 15:
        pytest.skip("this server streams prepared transactions")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(DefiniteError, match="Postgres 15"):
        source(database, two_phase=True).create_instances(1)


@pytest.mark.parametrize(
    "choice",
    [
        TableChoice(TableName("public", "orders")),
        TableChoice(TableName("public", "orders"), "purchases"),
        TableChoice(TableName("my schema", 'a."b'), "c d"),
        TableChoice(TableName("public", "AS")),
    ],
)
def test_table_choice_round_trips_as_text(choice: TableChoice) -> None:
    assert parse_table(choice_text(choice)) == choice
