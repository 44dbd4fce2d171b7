"""Penstock statements are distinguished from queries for Spark."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.sql.grammar import parse
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    DropSink,
    DropSources,
    DropTable,
    RepairRows,
    RetryTable,
    ShowCreate,
    ShowCreateSink,
    ShowErrors,
    ShowReaders,
    ShowRepairs,
    ShowSinks,
    ShowSources,
    ShowTables,
    Statement,
    Subscribe,
    Verify,
)
from tests.sql.kinds import KINDS


def parse_statement(text: str) -> Statement | None:
    return parse(text, KINDS)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("ALTER SOURCES shop RETRY TABLE public.orders", "public.orders"),
        ("alter source shop retry table orders;", "orders"),
        ("ALTER SOURCES shop\n  RETRY TABLE `public`.`my orders`  -- now", "public.my orders"),
    ],
)
def test_retry_table(text: str, table: str) -> None:
    assert parse_statement(text) == RetryTable("shop", table)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("ALTER SOURCES shop ADD TABLE public.invoices", AddTable("shop", "public.invoices")),
        ("alter source shop add table public.invoices as bills;", AddTable("shop", "public.invoices AS bills")),
        ("ALTER SOURCES shop ADD TABLE `my schema`.`a.b` AS `c d`", AddTable("shop", '"my schema"."a.b" AS "c d"')),
        ("ALTER SOURCES shop DROP TABLE public.users", DropTable("shop", "public.users")),
        ("alter source shop drop table users;", DropTable("shop", "users")),
        ("ALTER SOURCES shop ACCEPT INTERFERENCE", AcceptInterference("shop")),
        ("show repairs;", ShowRepairs()),
        ("SHOW TABLES", ShowTables()),
        ("SHOW TABLES FROM shop;", ShowTables("shop")),
        ("SHOW TABLES IN `my shop`", ShowTables("my shop")),
        ("SHOW TABLES FROM shop LIKE 'ord%'", ShowTables("shop", "ord%")),
        ("SHOW SOURCES LIKE '%'", ShowSources("%")),
        ("show errors like 'x';", ShowErrors("x")),
        ("SHOW READERS", ShowReaders()),
        ("SHOW READERS FROM shop LIKE 'live%'", ShowReaders("shop", "live%")),
        ("SUBSCRIBE shop", Subscribe("shop")),
        ("subscribe shop.public.orders;", Subscribe("shop", "public.orders")),
        ("SHOW SINKS", ShowSinks()),
        ("show sink;", ShowSinks()),
        ("SHOW CREATE SINK orders_out", ShowCreateSink("orders_out")),
        ("show create sinks `orders out`;", ShowCreateSink("orders out")),
        ("DROP SINK orders_out", DropSink("orders_out")),
        ("drop sinks if exists orders_out;", DropSink("orders_out", if_exists=True)),
        ("SHOW CREATE SOURCES shop", ShowCreate("shop")),
        ("show create source shop;", ShowCreate("shop")),
        ("SHOW ERRORS", ShowErrors()),
        ("DROP SOURCES shop", DropSources("shop")),
        ("DROP SOURCE IF EXISTS shop FORCE", DropSources("shop", if_exists=True, force=True)),
        ("DROP SOURCE shop KEEP TABLES", DropSources("shop", keep_tables=True)),
        ("DROP SOURCE shop FORCE KEEP TABLES;", DropSources("shop", keep_tables=True, force=True)),
        ("DROP SOURCE if", DropSources("if")),
        ("REPAIR shop.orders", RepairRows("shop", "orders")),
        ("repair shop.public.`my orders`;", RepairRows("shop", "public.my orders")),
        ("REPAIR shop.orders WHERE KEY IN (1, 2)", RepairRows("shop", "orders", ["1", "2"])),
        (
            "REPAIR shop.orders WHERE KEY IN (-1, 'it''s', 1.50, true);",
            RepairRows("shop", "orders", ["-1", "it's", "1.50", True]),
        ),
        ("REPAIR shop.lines WHERE KEY IN ((1, 'a'), (2, 'b'))", RepairRows("shop", "lines", [["1", "a"], ["2", "b"]])),
        (
            "REPAIR shop.orders WHERE id > 5 AND note = 'a;b';",
            RepairRows("shop", "orders", where="id > 5 AND note = 'a;b'"),
        ),
        ("VERIFY shop", Verify("shop")),
        ("verify shop.orders;", Verify("shop", "orders")),
        ("VERIFY shop.public.`my orders`", Verify("shop", "public.my orders")),
    ],
)
def test_other_statements(text: str, statement: Statement) -> None:
    assert parse_statement(text) == statement


@pytest.mark.parametrize("text", ["SHOW SOURCES", "show source;", "SHOW\n SOURCES -- all"])
def test_show_sources(text: str) -> None:
    assert parse_statement(text) == ShowSources()


def test_show_sources_with_extra_words_is_rejected() -> None:
    with pytest.raises(UsageError, match='at or near "FROM": expected end of statement'):
        parse_statement("SHOW SOURCES FROM shop")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "ALTER TABLE x",
        "select 'ALTER SOURCES shop'",
        "",
        "'",
        "ALTER",
        "-- SHOW SOURCES\nSELECT 1",
        "SHOW SCHEMAS",
        "SHOW COLUMNS FROM shop.orders",
        "SHOW CREATE TABLE x",
        "SHOW TABLE EXTENDED LIKE 'x'",
        "SHOW VIEWS",
        "SHOW PARTITIONS t",
        "CREATE SCHEMA sources",
        "CREATE TABLE sources (id INT)",
        "DROP TABLE sources",
        "DROP VIEW source",
        "EXPLAIN SELECT * FROM sources",
        "EXPLAIN FORMATTED SELECT 1",
        "REPAIR TABLE lake.x",
        "MSCK REPAIR TABLE lake.x",
        "DESCRIBE sources",
        "SELECT sources FROM show",
        "WITH sources AS (SELECT 1) SELECT * FROM sources",
        "REPLACE TABLE x",
        "REFRESH TABLE x",
        "VALUES (1)",
    ],
)
def test_spark_statements_are_not_parsed(text: str) -> None:
    assert parse_statement(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "ALTER SOURCES",
        "ALTER SOURCES shop",
        "ALTER SOURCES shop RETRY TABLE",
        "ALTER SOURCES shop RETRY TABLE a.b.c",
        "ALTER SOURCES shop RETRY TABLE a b",
        "ALTER SOURCES shop DROP TABLE",
        "ALTER SOURCES shop DROP TABLE a.b AS c",
        "ALTER SOURCES shop ADD TABLE invoices",
        "ALTER SOURCES shop ADD TABLE public.invoices AS",
        "ALTER SOURCES shop ADD TABLE public.invoices bills",
    ],
)
def test_incomplete_alter_is_rejected_with_its_syntax(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_statement(text)
    assert "RETRY TABLE table" in caught.value.hint


@pytest.mark.parametrize("text", ["VERIFY", "VERIFY;", "VERIFY shop.", "VERIFY shop orders", "VERIFY a.b.c.d"])
def test_invalid_verify_is_rejected_with_its_syntax(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_statement(text)
    assert "VERIFY source[.table]" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "REPAIR",
        "REPAIR shop",
        "REPAIR shop.orders WHERE",
        "REPAIR shop.orders WHERE KEY IN",
        "REPAIR shop.orders WHERE KEY IN ()",
        "REPAIR shop.orders WHERE KEY IN (1",
        "REPAIR shop.orders WHERE KEY IN (now())",
        "REPAIR shop.orders WHERE KEY IN (SELECT 1)",
        "REPAIR shop.orders WHERE KEY IN (1) OR true",
        "REPAIR shop.orders id = 1",
    ],
)
def test_invalid_repair_is_rejected_with_its_syntax(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_statement(text)
    assert "REPAIR source.table" in caught.value.hint
