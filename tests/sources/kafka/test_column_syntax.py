"""Columns in a statement: Spark SQL types, nested; an invalid type is reported at its position."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sources.kafka.message_formats import CsvOptions, JsonOptions
from penstock.sources.kafka.option_syntax import GivenColumn, ddl
from penstock.sources.kafka.spec import KafkaSource
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from penstock.sql.statements import CreateSource

JSON = "CREATE SOURCE c FROM KAFKA BROKER 'k' TOPIC 't' FORMAT JSON COLUMNS"


def read(columns: str) -> tuple[GivenColumn, ...]:
    statement = parse(f"{JSON} {columns}", {"KAFKA": KafkaSource})
    assert isinstance(statement, CreateSource)
    found = statement.sql_options
    assert isinstance(found, KafkaSource.SqlOptions)
    assert isinstance(found.format, JsonOptions)
    return found.format.columns


@pytest.mark.parametrize(
    ("columns", "types"),
    [
        ("(id BIGINT, name String)", ["bigint", "string"]),
        ("(id decimal(10,2))", ["decimal(10, 2)"]),
        ("(a array<map<string,array<int>>>)", ["array<map<string, array<int>>>"]),
        ('(a struct<x: int, "y z" struct<`q``r`: date>>)', ["struct<`x`: int, `y z`: struct<`q``r`: date>>"]),
        ("()", []),
    ],
)
def test_types(columns: str, types: list[str]) -> None:
    assert [column.type for column in read(columns)] == types


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ('(id "bigint, x string")', "expected a type name"),
        ('(id "it\'s")', "expected a type name"),
        (f"(id {'array<' * 30}int{'>' * 30})", "nested more than 20 levels"),
        ("(id interval)", "type"),
        ("(id array<int, int>)", "type"),
        ("(id map<int, int>)", "type"),
        ("(id struct<>)", "expected"),
        ("(id bigint", "expected"),
    ],
)
def test_invalid_types_are_rejected(columns: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        read(columns)


@pytest.mark.parametrize("kind", ["", "bigint, x string", "it's", "`", "STRUCT<", "bigint) --"])
def test_types_given_in_python_are_validated(kind: str) -> None:
    with pytest.raises(UsageError):
        JsonOptions(columns=(GivenColumn("id", kind),))
    with pytest.raises(UsageError):
        CsvOptions(columns=(GivenColumn("id", kind),))


def test_column_names_are_quoted() -> None:
    assert ddl([GivenColumn("a` int, `b", "string")]) == "`a`` int, ``b` string"


@settings(max_examples=300, deadline=None)
@given(st.text("()<>,: '\"`abintsrucy0-\n;", max_size=40))
def test_any_text_is_parsed_or_rejected_with_a_hint(text: str) -> None:
    try:
        read(f"({text})")
    except UsageError as error:
        assert error.hint
