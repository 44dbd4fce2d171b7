"""Statements of ours: what Spark SQL does not know. Read word by word, with sqlglot's tokens.

::

    SHOW SOURCES | SHOW REPAIRS
    ALTER SOURCES source ADD TABLE schema.table [AS name] | DROP TABLE table | RETRY TABLE table | ACCEPT INTERFERENCE
    VERIFY source[.table]
    REPAIR source.table [WHERE KEY IN (key, …) | WHERE condition]

Anything that does not begin like one of them is a query, for Spark to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.sources.postgres.names import TableChoice, choice_text

__all__ = [
    "AcceptInterference",
    "AddTable",
    "DropTable",
    "Repairing",
    "RetryTable",
    "ShowRepairs",
    "ShowSources",
    "Statement",
    "Verify",
    "parse_statement",
]

_ALTER = (
    "Write: ALTER SOURCES source ADD TABLE schema.table [AS name]; or ALTER SOURCES source DROP TABLE schema.table;"
    " or ALTER SOURCES source RETRY TABLE schema.table; or ALTER SOURCES source ACCEPT INTERFERENCE;"
)
_REPAIR = "Write: REPAIR source.table WHERE KEY IN (1, 2); or … WHERE condition; or REPAIR source.table; for all rows."
_VERIFY = "Write: VERIFY source; or VERIFY source.table;"


@dataclass(frozen=True)
class AddTable:
    """``ALTER SOURCES source ADD TABLE schema.table [AS name]``: capture another table."""

    source: str
    table: str
    """As the options of a source name one, with the name that it shall have here."""


@dataclass(frozen=True)
class DropTable:
    """``ALTER SOURCES source DROP TABLE table``: capture a table no more."""

    source: str
    table: str


@dataclass(frozen=True)
class RetryTable:
    """``ALTER SOURCES source RETRY TABLE table``: capture a table anew, and copy it afresh."""

    source: str
    table: str


@dataclass(frozen=True)
class ShowSources:
    """``SHOW SOURCES``: each with its state and frontiers."""


@dataclass(frozen=True)
class Verify:
    """``VERIFY source`` or ``VERIFY source.table``: compare with Postgres."""

    source: str
    table: str | None = None


@dataclass(frozen=True)
class Repairing:
    """``REPAIR source.table [WHERE KEY IN (key, …) | WHERE condition]``: read rows anew, and put them right."""

    source: str
    table: str
    keys: list[Any] | None = None
    where: str | None = None


@dataclass(frozen=True)
class ShowRepairs:
    """``SHOW REPAIRS``: what was repaired, by whom, when, and what came of it."""


@dataclass(frozen=True)
class AcceptInterference:
    """``ALTER SOURCES source ACCEPT INTERFERENCE``: go on behind what others wrote in the place of watermarks."""

    source: str


Statement = AcceptInterference | AddTable | DropTable | Repairing | RetryTable | ShowRepairs | ShowSources | Verify


def parse_statement(text: str) -> Statement | None:
    """Return the statement; None for a query."""
    try:
        tokens = _tokens(text)
    except TokenError:
        return None
    words = [token.text.upper() for token in tokens]
    readers: dict[tuple[str, ...], Callable[[list[Token]], Statement]] = {
        ("SHOW", "SOURCES"): _show_sources,
        ("ALTER", "SOURCES"): _alter_sources,
        ("SHOW", "REPAIRS"): _show_repairs,
        ("VERIFY",): _verify,
        ("REPAIR",): partial(_repair, text),
    }
    for begin, read in readers.items():
        if tuple("SOURCES" if word == "SOURCE" else word for word in words[: len(begin)]) == begin:
            return read(tokens[len(begin) :])
    return None


def _tokens(text: str) -> list[Token]:
    """Read the words of a statement, without the semicolon that ends it."""
    tokens = sqlglot.tokenize(text, read="spark")
    if tokens and tokens[0].text.upper() == "SHOW":  # sqlglot takes what follows for one token
        tokens = [tokens[0], *sqlglot.tokenize(text[tokens[0].end + 1 :], read="spark")]
    return tokens[:-1] if tokens and tokens[-1].token_type is TokenType.SEMICOLON else tokens


def _show_repairs(rest: list[Token]) -> ShowRepairs:
    if rest:
        message = "SHOW REPAIRS is followed by something else"
        raise UsageError(message, "Write: SHOW REPAIRS;")
    return ShowRepairs()


def _show_sources(rest: list[Token]) -> ShowSources:
    if rest:
        message = "SHOW SOURCES is followed by something else"
        raise UsageError(message, "Write: SHOW SOURCES;")
    return ShowSources()


def _alter_sources(rest: list[Token]) -> AcceptInterference | AddTable | DropTable | RetryTable:
    verb = " ".join(token.text.upper() for token in rest[1:3])
    if len(rest) == 3 and verb == "ACCEPT INTERFERENCE":
        return AcceptInterference(rest[0].text)
    if len(rest) < 4 or verb not in ("ADD TABLE", "DROP TABLE", "RETRY TABLE"):
        message = "ALTER SOURCES is not followed by what it shall do"
        raise UsageError(message, _ALTER)
    source, name = rest[0].text, rest[3:]
    if verb == "ADD TABLE":
        return AddTable(source, _choice(name))
    table = ".".join(_name(name, (1, 2), _ALTER))
    return DropTable(source, table) if verb == "DROP TABLE" else RetryTable(source, table)


def _choice(tokens: list[Token]) -> str:
    """Read ``schema.table [AS name]``."""
    alias = tokens[-1].text if len(tokens) > 2 and tokens[-2].text.upper() == "AS" else None
    schema, name = _name(tokens[:-2] if alias else tokens, (2,), _ALTER)
    return choice_text(TableChoice(TableName(schema, name), alias))


def _verify(rest: list[Token]) -> Verify:
    source, *table = _name(rest, (1, 2, 3), _VERIFY)
    return Verify(source, ".".join(table) or None)


def _repair(text: str, rest: list[Token]) -> Repairing:
    words = [token.text.upper() for token in rest]
    at = words.index("WHERE") if "WHERE" in words else len(rest)
    source, *table = _name(rest[:at], (2, 3), _REPAIR)
    if at == len(rest):
        return Repairing(source, ".".join(table))
    if words[at + 1 : at + 3] == ["KEY", "IN"]:
        return Repairing(source, ".".join(table), keys=_keys(text[rest[at + 2].end + 1 : rest[-1].end + 1]))
    where = text[rest[at].end + 1 : rest[-1].end + 1].strip()
    if not where:
        message = "there is no condition behind WHERE"
        raise UsageError(message, _REPAIR)
    return Repairing(source, ".".join(table), where=where)


def _keys(text: str) -> list[Any]:
    """Read ``(1, 'x')`` or ``((1, 'x'), (2, 'y'))``: keys as values, or as lists of values."""
    try:
        listed = sqlglot.parse_one(f"1 IN {text}", read="postgres")
    except ParseError:
        listed = None
    if not isinstance(listed, exp.In) or not listed.expressions:
        message = "the keys behind KEY IN cannot be read"
        raise UsageError(message, _REPAIR)
    return [_value(each) for each in listed.expressions]


def _value(found: exp.Expression) -> Any:
    """Read a literal; a number stays the text that it is, so that nothing is rounded."""
    if isinstance(found, exp.Tuple):
        return [_value(each) for each in found.expressions]
    if isinstance(found, exp.Paren):
        return _value(found.this)
    if isinstance(found, exp.Boolean):
        return bool(found.this)
    negative = isinstance(found, exp.Neg)
    literal = found.this if isinstance(found, exp.Neg) else found
    if not isinstance(literal, exp.Literal):
        message = f"this is not a value of a key: {found.sql()}"
        raise UsageError(message, _REPAIR)
    return f"-{literal.this}" if negative else str(literal.this)


def _name(tokens: list[Token], parts: tuple[int, ...], usage: str) -> list[str]:
    """Read a name of so many parts, and nothing behind it."""
    dots = [token.token_type is TokenType.DOT for token in tokens]
    if dots not in [[False, *[True, False] * (count - 1)] for count in parts]:
        message = f"this is not a name that can stand here: {' '.join(token.text for token in tokens) or 'nothing'}"
        raise UsageError(message, usage)
    return [token.text for token in tokens[::2]]
