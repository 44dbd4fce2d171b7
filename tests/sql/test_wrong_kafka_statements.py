"""What is said of wrong statements about Kafka, as `test_wrong_statements` does of others: by the real kind.

``PENSTOCK_REWRITE_MESSAGES=1 pytest tests/sql/test_wrong_kafka_statements.py`` writes the messages anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.sources.kafka.spec import KafkaSource
from penstock.sql.grammar import parse
from penstock.sql.statements import CreateSource
from tests.sql.test_wrong_statements import BEHIND, BETWEEN, cases

CORPUS = Path(__file__).parent / "wrong_kafka_statements.txt"


def said(statement: str) -> str:
    """Return the error of a statement: of its text, or of what its options mean together."""
    with pytest.raises(UsageError) as caught:
        read = parse(statement, {"KAFKA": KafkaSource})
        assert isinstance(read, CreateSource)
        KafkaSource.from_options(read.name, read.sql_options, read.with_options)
    assert caught.value.hint, "each error says what to do"
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def rewrite() -> None:
    blocks = [f"{statement}{BEHIND}{said(statement)}" for statement, _ in cases(CORPUS)]
    CORPUS.write_text(BETWEEN.join(blocks) + "\n", encoding="utf-8")


if os.environ.get("PENSTOCK_REWRITE_MESSAGES"):
    rewrite()


def test_there_are_many_and_each_once() -> None:
    statements = [statement for statement, _ in cases(CORPUS)]
    assert len(set(statements)) == len(statements) >= 40


@pytest.mark.parametrize(("statement", "message"), cases(CORPUS))
def test_what_is_said_of_a_wrong_statement(statement: str, message: str) -> None:
    assert said(statement) == message
