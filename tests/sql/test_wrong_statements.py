"""What is said of wrong statements, word for word: ``wrong_statements.txt`` has the statements and the messages.

``PENSTOCK_REWRITE_MESSAGES=1 pytest tests/sql/test_wrong_statements.py`` writes the messages anew; then read the diff.
To add a statement, add it with ``--> ?`` behind it, and do that.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from tests.sql.kinds import KINDS

CORPUS = Path(__file__).parent / "wrong_statements.txt"
BETWEEN = "\n\n" + "=" * 40 + "\n\n"
BEHIND = "\n-->\n"


def cases(corpus: Path = CORPUS) -> list[tuple[str, str]]:
    blocks = corpus.read_text(encoding="utf-8").rstrip("\n").split(BETWEEN)
    return [(statement, message) for statement, _, message in (block.partition(BEHIND) for block in blocks)]


def said(statement: str) -> str:
    """Return the error of a statement; that there is one is part of the test."""
    with pytest.raises(SqlError) as caught:
        parse(statement, KINDS)
    assert caught.value.hint, "each error says what to do"
    return str(caught.value)


def rewrite() -> None:
    blocks = [f"{statement}{BEHIND}{said(statement)}" for statement, _ in cases()]
    CORPUS.write_text(BETWEEN.join(blocks) + "\n", encoding="utf-8")


if os.environ.get("PENSTOCK_REWRITE_MESSAGES"):
    rewrite()


def test_there_are_many_and_each_once() -> None:
    statements = [statement for statement, _ in cases()]
    assert len(set(statements)) == len(statements) >= 100


@pytest.mark.parametrize(("statement", "message"), cases())
def test_what_is_said_of_a_wrong_statement(statement: str, message: str) -> None:
    assert said(statement) == message


@pytest.mark.parametrize("statement", [statement for statement, _ in cases()])
def test_the_caret_is_under_the_place(statement: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(statement, KINDS)
    line, caret = caught.value.excerpt.split("\n")
    lines = statement.split("\n")
    assert 1 <= caught.value.line <= len(lines)
    at = lines[caught.value.line - 1][caught.value.column - 1 :]
    shown = line[len(caret) - 1 :]
    assert shown[:1].strip() == at[:1].strip() or shown.startswith("***")
