"""The exact messages for invalid statements: ``wrong_statements.txt`` has the statements and the messages.

``PENSTOCK_REWRITE_MESSAGES=1 pytest tests/sql/test_wrong_statements.py`` regenerates the messages; then review the
diff. To add a statement, append it with ``--> ?``, and regenerate.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from tests.sql.kinds import KINDS

CORPUS = Path(__file__).parent / "wrong_statements.txt"
SEPARATOR = "\n\n" + "=" * 40 + "\n\n"
ARROW = "\n-->\n"


def cases(corpus: Path = CORPUS) -> list[tuple[str, str]]:
    blocks = corpus.read_text(encoding="utf-8").rstrip("\n").split(SEPARATOR)
    return [(statement, message) for statement, _, message in (block.partition(ARROW) for block in blocks)]


def message_of(statement: str) -> str:
    """Return the error of a statement; fail if there is none."""
    with pytest.raises(SqlError) as caught:
        parse(statement, KINDS)
    assert caught.value.hint, "each error has a hint"
    return str(caught.value)


def rewrite() -> None:
    blocks = [f"{statement}{ARROW}{message_of(statement)}" for statement, _ in cases()]
    CORPUS.write_text(SEPARATOR.join(blocks) + "\n", encoding="utf-8")


if os.environ.get("PENSTOCK_REWRITE_MESSAGES"):
    rewrite()


def test_statements_are_many_and_distinct() -> None:
    statements = [statement for statement, _ in cases()]
    assert len(set(statements)) == len(statements) >= 100


@pytest.mark.parametrize(("statement", "message"), cases())
def test_message_for_an_invalid_statement(statement: str, message: str) -> None:
    assert message_of(statement) == message


@pytest.mark.parametrize("statement", [statement for statement, _ in cases()])
def test_caret_is_at_the_position(statement: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(statement, KINDS)
    line, caret = caught.value.excerpt.split("\n")
    lines = statement.split("\n")
    assert 1 <= caught.value.line <= len(lines)
    at = lines[caught.value.line - 1][caught.value.column - 1 :]
    shown = line[len(caret) - 1 :]
    assert shown[:1].strip() == at[:1].strip() or shown.startswith("***")
