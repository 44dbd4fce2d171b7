"""Columns in a statement: types of Spark SQL, nested; whatever is no type is told at its place."""

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
    ("columns", "said"),
    [
        ('(id "bigint, x string")', "not the name of a type"),
        ('(id "it\'s")', "not the name of a type"),
        (f"(id {'array<' * 30}int{'>' * 30})", "more than 20 others around it"),
        ("(id interval)", "type"),
        ("(id array<int, int>)", "type"),
        ("(id map<int, int>)", "type"),
        ("(id struct<>)", "expected"),
        ("(id bigint", "expected"),
    ],
)
def test_what_is_no_type(columns: str, said: str) -> None:
    with pytest.raises(SqlError, match=said):
        read(columns)


@pytest.mark.parametrize("kind", ["", "bigint, x string", "it's", "`", "STRUCT<", "bigint) --"])
def test_what_python_gives_is_held_to_the_same(kind: str) -> None:
    with pytest.raises(UsageError):
        JsonOptions(columns=(GivenColumn("id", kind),))
    with pytest.raises(UsageError):
        CsvOptions(columns=(GivenColumn("id", kind),))


def test_names_cannot_break_out() -> None:
    assert ddl([GivenColumn("a` int, `b", "string")]) == "`a`` int, ``b` string"


@settings(max_examples=300, deadline=None)
@given(st.text("()<>,: '\"`abintsrucy0-\n;", max_size=40))
def test_any_text_is_columns_or_an_error_of_ours(text: str) -> None:
    try:
        read(f"({text})")
    except UsageError as error:
        assert error.hint
