"""Statements of ours: what Spark SQL does not know. So far ``SHOW SOURCES`` and ``ALTER SOURCES … RETRY TABLE …``.

Read word by word with sqlglot's tokens. Anything that does not begin like one of them is a query, for Spark to read.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError

__all__ = ["RetryTable", "ShowSources", "parse_statement"]

_USAGE = "Write: ALTER SOURCES source RETRY TABLE schema.table;"


@dataclass(frozen=True)
class RetryTable:
    """``ALTER SOURCES source RETRY TABLE table``: capture a failed table anew."""

    source: str
    table: str


@dataclass(frozen=True)
class ShowSources:
    """``SHOW SOURCES``: each with its state and frontiers."""


def parse_statement(text: str) -> RetryTable | ShowSources | None:
    """Return the statement; None for a query."""
    try:
        tokens = sqlglot.tokenize(text, read="spark")
    except TokenError:
        return None
    words = [token.text.upper() for token in tokens]
    if words[:1] == ["SHOW"]:  # sqlglot takes what follows for one token
        words = ["SHOW", *(token.text.upper() for token in sqlglot.tokenize(text[tokens[0].end + 1 :], read="spark"))]
    if words[:2] in (["SHOW", "SOURCES"], ["SHOW", "SOURCE"]):
        return _show_sources(words)
    if words[:2] not in (["ALTER", "SOURCES"], ["ALTER", "SOURCE"]):
        return None
    if len(tokens) < 6 or words[3:5] != ["RETRY", "TABLE"]:
        message = "ALTER SOURCES is not followed by what it shall do"
        raise UsageError(message, _USAGE)
    table = _name(tokens[5:])
    return RetryTable(tokens[2].text, table)


def _show_sources(words: list[str]) -> ShowSources:
    if words[2:] not in ([], [";"]):
        message = "SHOW SOURCES is followed by something else"
        raise UsageError(message, "Write: SHOW SOURCES;")
    return ShowSources()


def _name(tokens: list[Token]) -> str:
    """Read a name of one or two parts, and nothing behind it."""
    parts = [token for token in tokens if token.token_type is not TokenType.SEMICOLON]
    dots = [token.token_type is TokenType.DOT for token in parts]
    if dots not in ([False], [False, True, False]):
        message = f"this is not the name of a table: {' '.join(token.text for token in parts)}"
        raise UsageError(message, _USAGE)
    return "".join(token.text for token in parts)
