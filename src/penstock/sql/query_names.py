"""Dotted names in a query, by sqlglot's tokens: where each stands, and what is expected there.

A name in table position follows FROM, JOIN or a comma between tables, also in parentheses. A *scope* is the query that
a name is in: subqueries see the tables of the queries around them, and not the other way round.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.sql.tokens import after_blanks, leading_words, unreadable

__all__ = ["Name", "Place", "dotted_names", "query_tokens"]

_NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
_TABLES_FOLLOW = {TokenType.FROM, TokenType.JOIN}
_TABLES_END = {
    TokenType.SELECT, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.SORT_BY,
    TokenType.CLUSTER_BY, TokenType.DISTRIBUTE_BY, TokenType.LIMIT, TokenType.UNION, TokenType.EXCEPT,
    TokenType.INTERSECT, TokenType.WINDOW, TokenType.QUALIFY,
}  # fmt: skip
"""Not ON and USING: a comma behind them, outside of parentheses, is followed by a table."""
_BEFORE_TABLES = {TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN}
_QUERIES = {TokenType.SELECT, TokenType.WITH, TokenType.FROM}
_BEFORE_TABLE = {TokenType.L_PAREN, TokenType.FARROW, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT}
_COMMANDS = ("EXPLAIN", "SHOW")
"""What follows them is one token to sqlglot."""
_DESCRIBING = ("DESCRIBE", "DESC")
_OF_DESCRIBING = {"DESCRIBE", "DESC", "TABLE", "EXTENDED", "FORMATTED"}


class Place(enum.Enum):
    """What is expected where a name stands."""

    TABLE = "table"
    """A table, with an alias behind it or none."""
    BARE_TABLE = "bare table"
    """A table, where no alias can stand: ``DESCRIBE``, ``TABLE``, ``SHOW COLUMNS FROM``."""
    ELSEWHERE = "elsewhere"
    """A column, a function or anything else."""


@dataclass(frozen=True)
class Name:
    """A dotted name in the text: its parts, where it stands, what is expected there."""

    parts: tuple[str, ...]
    start: int
    ends: tuple[int, ...]
    """Where each part ends in the text."""
    following: int
    """The place of the token behind it."""
    place: Place
    scope: tuple[int, ...]

    def is_seen_from(self, scope: tuple[int, ...]) -> bool:
        """Say whether a table here is visible in a scope: its own, or one within it."""
        return scope[: len(self.scope)] == self.scope


def query_tokens(query: str) -> list[Token]:
    """Return the tokens as Spark has them; what cannot be read is an error at its place."""
    text = query
    if leading_words(query, 1)[:1] in [(command,) for command in _COMMANDS]:
        start = after_blanks(query, 0)
        end = start + len(leading_words(query, 1)[0])
        text = query[:start] + " " * (end - start) + query[end:]
    try:
        return sqlglot.tokenize(text, read="spark")
    except TokenError as error:
        raise unreadable(query, error) from None


@dataclass
class _Walk:
    """Where in a query one is: per parenthesis, whether tables are expected and which query it is of."""

    expects_table: list[bool] = field(default_factory=lambda: [False])
    scopes: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    queries: int = 0

    def opens(self, within_tables: bool, is_query: bool) -> None:
        """Go into a parenthesis: a subquery, a join in parentheses, or arguments."""
        self.queries += is_query
        scope = self.scopes[-1]
        self.scopes.append((*scope, self.queries) if is_query else scope)
        self.expects_table.append(self.expects_table[-1] and within_tables)

    def closes(self) -> None:
        """Go out of a parenthesis."""
        if len(self.scopes) > 1:
            self.scopes.pop()
            self.expects_table.pop()


def dotted_names(query: str, tokens: Sequence[Token]) -> Iterator[Name]:
    """Yield the names of at least two parts, from left to right."""
    walk, at = _Walk(), 0
    shows_columns = leading_words(query, 2) == ("SHOW", "COLUMNS")
    while at < len(tokens):
        kind = tokens[at].token_type
        if kind is TokenType.L_PAREN:
            is_query = at + 1 < len(tokens) and tokens[at + 1].token_type in _QUERIES
            walk.opens(at > 0 and tokens[at - 1].token_type in _BEFORE_TABLES, is_query)
        elif kind is TokenType.R_PAREN:
            walk.closes()
        elif kind in _TABLES_FOLLOW:
            walk.expects_table[-1] = True
        elif kind in _TABLES_END:
            walk.expects_table[-1] = False
        parts = _parts_at(tokens, at)
        if len(parts) > 1:
            place = Place.BARE_TABLE if shows_columns else _place(query, tokens, at, walk.expects_table[-1])
            texts, ends = tuple(token.text for token in parts), tuple(token.end for token in parts)
            yield Name(texts, parts[0].start, ends, at + 2 * len(parts) - 1, place, walk.scopes[-1])
            at += 2 * len(parts) - 2
        at += 1


def _place(query: str, tokens: Sequence[Token], at: int, expects_table: bool) -> Place:
    """Tell what is expected by what stands before."""
    before = tokens[at - 1].token_type if at else None
    if before is TokenType.USING or (expects_table and before in _BEFORE_TABLES):
        return Place.TABLE  # JOIN … USING is followed by a parenthesis, MERGE … USING by a table
    if before is TokenType.TABLE and (at == 1 or tokens[at - 2].token_type in _BEFORE_TABLE):
        return Place.BARE_TABLE
    if before is TokenType.L_PAREN and at > 1 and tokens[at - 2].token_type is TokenType.TABLE:
        return Place.BARE_TABLE
    describes = leading_words(query, 1)[:1] in [(word,) for word in _DESCRIBING]
    if describes and all(token.text.upper() in _OF_DESCRIBING for token in tokens[:at]):
        return Place.BARE_TABLE
    return Place.ELSEWHERE


def _parts_at(tokens: Sequence[Token], at: int) -> list[Token]:
    """Return the parts of the dotted name that begins here."""
    parts: list[Token] = []
    if at and tokens[at - 1].token_type is TokenType.DOT:
        return parts
    while _is_name(tokens, at):
        parts.append(tokens[at])
        if at + 1 == len(tokens) or tokens[at + 1].token_type is not TokenType.DOT:
            break
        at += 2
    return parts


def _is_name(tokens: Sequence[Token], at: int) -> bool:
    """After a dot, a keyword and a star are names too; before one, only a plain or quoted name is."""
    if at >= len(tokens):
        return False
    if tokens[at].token_type in _NAMES:
        return True
    dotted = at > 0 and tokens[at - 1].token_type is TokenType.DOT
    leads = at + 1 < len(tokens) and tokens[at + 1].token_type is TokenType.DOT
    if dotted and tokens[at].token_type is TokenType.STAR:
        return True
    return (dotted or leads) and tokens[at].text.isidentifier()
