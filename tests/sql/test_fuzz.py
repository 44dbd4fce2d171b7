"""For any input, the parser returns a statement, returns None for a query, or raises a Penstock error."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import UsageError
from penstock.sql.completion import KnownNames, candidates
from penstock.sql.errors import SqlError
from penstock.sql.grammar import is_penstock_statement, parse
from penstock.sql.query import resolve
from penstock.sql.script import split_statements
from penstock.sql.statements import CreateSource
from tests.sql.generated import ODD, sources
from tests.sql.kinds import KINDS
from tests.sql.test_rendering import written
from tests.sql.test_wrong_statements import cases

WRONG = [statement for statement, _ in cases()]
BEGINNINGS = [
    "CREATE SOURCES", "CREATE SOURCES shop FROM POSTGRES", "CREATE SOURCE c FROM KAFKA", "EXPLAIN SOURCES",
    "ALTER SOURCES shop", "ALTER SOURCES shop SET (", "DROP SOURCES", "SHOW", "SHOW TABLES", "SHOW CREATE SOURCES",
    "CREATE SINK", "CREATE SINK o FROM shop.orders INTO KAFKA", "ALTER SINK o SET (", "DROP SINK", "EXPLAIN SINK",
    "VERIFY", "REPAIR", "REPAIR a.b WHERE KEY IN (", "CREATE SOURCES shop FROM POSTGRES CONNECTION 'x' WITH (",
]  # fmt: skip
TOKENS = [
    "CREATE", "SOURCES", "FROM", "POSTGRES", "KAFKA", "CONNECTION", "'postgresql://u:hunter2@h/d'", "PASSWORD",
    "'hunter2'", "FOR", "ALL", "TABLES", "SCHEMAS", "(", ")", ",", "=", ".", ";", "-", "1", "1e999", "9" * 5000, "1.5",
    "WITH", "snapshot", "retain", "history", "'1 day'", "true", "\"q\"", "`b`", "''", "AS", "WHERE", "KEY", "IN",
    "FORMAT", "AVRO", "ENVELOPE", "DEBEZIUM", "INCLUDE", "--c\n", "/*c*/", "'", '"', "`", "/*", "é", "\x00", "\\", "{#",
]  # fmt: skip


def assert_no_password(options: object) -> None:
    """Assert that connections contain no password, and that PASSWORD is a reference; names may look like passwords."""
    connections = [getattr(options, "connection", None), *(getattr(options, "connections", None) or ())]
    assert not any(conninfo_to_dict(each).get("password") for each in connections if each)
    assert (getattr(options, "password", None) or "env:").startswith(("env:", "file:"))


def read(text: str) -> None:
    """Parse; assert that an error is a SqlError with a valid position in the text."""
    try:
        statement = parse(text, KINDS)
    except SqlError as error:
        lines = text.count("\n") + 1
        assert 1 <= error.line <= lines
        assert error.column >= 1
        assert error.hint
        line, caret = error.excerpt.split("\n")
        assert len(line) <= 106
        assert len(caret) <= 106
        assert caret.strip() == "^"
    else:
        assert (statement is None) == (not is_penstock_statement(text))
        if isinstance(statement, CreateSource):
            assert_no_password(statement.sql_options)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["", *BEGINNINGS]), st.one_of(st.text(), st.text(ODD)))
def test_any_text(beginning: str, text: str) -> None:
    read(f"{beginning} {text}")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["", *BEGINNINGS]), st.lists(st.sampled_from(TOKENS), max_size=12), st.sampled_from(["", " "]))
def test_random_tokens(beginning: str, tokens: list[str], between: str) -> None:
    read(f"{beginning} {between.join(tokens)}")


@settings(max_examples=150, deadline=None)
@given(sources.map(written), st.data())
def test_statement_with_a_random_change(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    read(text[:start] + data.draw(st.one_of(st.sampled_from(["", *TOKENS]), st.text(max_size=3))) + text[end:])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(WRONG), st.sampled_from(WRONG), st.integers(0, 200), st.integers(0, 200))
def test_parts_of_two_statements(first: str, second: str, until: int, after: int) -> None:
    read(first[:until] + second[after:])


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.lists(st.sampled_from(TOKENS)).map(" ".join), st.sampled_from(WRONG), st.text(ODD)))
def test_completion_and_scripts_accept_any_text(text: str) -> None:
    assert isinstance(candidates(text, KINDS, KnownNames({"shop": ("orders",)})), list)
    for piece in split_statements(text):
        assert piece.text in text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["SELECT", "shop.orders", "AS OF", "LSN", "'0/1'", "x", *TOKENS])).map(" ".join))
def test_random_queries_are_resolved_or_rejected(text: str) -> None:
    try:
        resolve(text, {("shop", "orders"): "shop.orders"}, "v")
    except UsageError as error:
        assert error.hint
