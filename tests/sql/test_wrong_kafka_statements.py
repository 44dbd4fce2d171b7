"""The exact messages for invalid Kafka statements, with the real kind; like `test_wrong_statements`.

``PENSTOCK_REWRITE_MESSAGES=1 pytest tests/sql/test_wrong_kafka_statements.py`` regenerates the messages.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.sources.kafka.spec import KafkaSource
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from tests.sql.test_wrong_statements import ARROW, SEPARATOR, cases

CORPUS = Path(__file__).parent / "wrong_kafka_statements.txt"


def message_of(statement: str) -> str:
    """Return the error of a statement; each has a position, also those of options that are invalid together."""
    with pytest.raises(SqlError) as caught:
        parse(statement, {"KAFKA": KafkaSource})
    assert caught.value.hint, "each error has a hint"
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def rewrite() -> None:
    blocks = [f"{statement}{ARROW}{message_of(statement)}" for statement, _ in cases(CORPUS)]
    CORPUS.write_text(SEPARATOR.join(blocks) + "\n", encoding="utf-8")


if os.environ.get("PENSTOCK_REWRITE_MESSAGES"):
    rewrite()


def test_statements_are_many_and_distinct() -> None:
    statements = [statement for statement, _ in cases(CORPUS)]
    assert len(set(statements)) == len(statements) >= 40


@pytest.mark.parametrize(("statement", "message"), cases(CORPUS))
def test_message_for_an_invalid_statement(statement: str, message: str) -> None:
    assert message_of(statement) == message
