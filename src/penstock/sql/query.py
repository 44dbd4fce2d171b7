"""Queries over live tables: names of ours are found in the text and replaced; nothing else of it is touched.

``shop.orders`` in table position becomes a view's name with the alias ``orders`` (unless it has one of its own), also
with an ``AS OF`` behind it, and ``shop.orders.id`` elsewhere becomes ``orders.id``. Strings, comments and everything
that is not a captured table stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlglot
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError
from penstock.positions import Lsn
from penstock.sql.as_of import clause_at

__all__ = ["Resolved", "Wanted", "resolve"]

_NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
_TABLES_FOLLOW = {TokenType.FROM, TokenType.JOIN}
_TABLES_END = {
    TokenType.SELECT, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.SORT_BY,
    TokenType.CLUSTER_BY, TokenType.DISTRIBUTE_BY, TokenType.LIMIT, TokenType.UNION, TokenType.EXCEPT,
    TokenType.INTERSECT, TokenType.WINDOW, TokenType.QUALIFY,
}  # fmt: skip
"""Not ON and USING: a comma behind them, outside of parentheses, is followed by a table."""
_BEFORE_TABLES = {TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN}
_ALIASES = Spark.parser_class.TABLE_ALIAS_TOKENS - {
    TokenType.LIMIT, TokenType.OFFSET, TokenType.PIVOT, TokenType.UNPIVOT,
}  # fmt: skip
_ALIASED = _ALIASES | {TokenType.ALIAS, TokenType.TABLE_SAMPLE}  # an alias stands behind a sample


@dataclass(frozen=True)
class Wanted:
    """A table, as the mapping named it, and the position or moment that its name asks for."""

    table: str
    as_of: Lsn | datetime | None = None


@dataclass(frozen=True)
class Resolved:
    """The query's new text, and the views that it needs, by name."""

    text: str
    views: dict[str, Wanted]


@dataclass(frozen=True)
class _Name:
    """A dotted name in the text: its parts, where it stands, and whether a table is expected there."""

    parts: tuple[str, ...]
    ends: tuple[int, ...]
    start: int
    is_table: bool
    following: int
    """The place of the token behind it."""


def resolve(query: str, tables: Mapping[tuple[str, ...], str], prefix: str) -> Resolved:
    """Replace the names of `tables` (by their parts, lower case) with views called `prefix` and a number."""
    views: dict[str, Wanted] = {}
    tokens = _tokens(query)
    pieces, at = [], 0
    for name in _dotted_names(tokens):
        known = _longest_known(name, tables)
        if known is None:
            continue
        table, parts = known
        end = name.ends[parts - 1] + 1
        alias = name.parts[parts - 1]
        if name.is_table and len(name.parts) == parts:
            clause = clause_at(tokens, name.following, query)
            wanted = Wanted(table, clause.as_of if clause else None)
            view = next((view for view, known in views.items() if known == wanted), f"{prefix}{len(views) + 1}")
            views[view] = wanted
            new = view if _has_alias(tokens, clause.last + 1 if clause else name.following) else f"{view} AS `{alias}`"
            end = tokens[clause.last].end + 1 if clause else end
        elif len(name.parts) > parts:  # a column, also behind the FROM of EXTRACT or IS DISTINCT FROM
            new = f"`{alias}`"
        else:
            continue
        pieces += [query[at : name.start], new]
        at = end
    return Resolved("".join([*pieces, query[at:]]), views)


def _longest_known(name: _Name, tables: Mapping[tuple[str, ...], str]) -> tuple[str, int] | None:
    lower = tuple(part.lower() for part in name.parts)
    for parts in (3, 2):
        if lower[:parts] in tables and len(lower) >= parts:
            return tables[lower[:parts]], parts
    return None


def _dotted_names(tokens: list[Token]) -> Iterator[_Name]:
    expects_table = [False]
    at = 0
    while at < len(tokens):
        kind = tokens[at].token_type
        if kind is TokenType.L_PAREN:
            inside = at > 0 and tokens[at - 1].token_type in _BEFORE_TABLES
            expects_table.append(expects_table[-1] and inside)  # a join in parentheses, until a SELECT says otherwise
        elif kind is TokenType.R_PAREN and len(expects_table) > 1:
            expects_table.pop()
        elif kind in _TABLES_FOLLOW:
            expects_table[-1] = True
        elif kind in _TABLES_END:
            expects_table[-1] = False
        name = _name_at(tokens, at, expects_table[-1])
        if name is not None:
            yield name
            at += 2 * len(name.parts) - 2
        at += 1


def _name_at(tokens: list[Token], at: int, expects_table: bool) -> _Name | None:
    """Read a dotted name of at least two parts that begins here."""
    if at and tokens[at - 1].token_type is TokenType.DOT:
        return None
    parts, end = [], at
    while _is_name(tokens, end):
        parts.append(tokens[end])
        if end + 1 < len(tokens) and tokens[end + 1].token_type is TokenType.DOT:
            end += 2
        else:
            break
    if len(parts) < 2:
        return None
    is_table = expects_table and at > 0 and tokens[at - 1].token_type in _BEFORE_TABLES
    texts, ends = tuple(t.text for t in parts), tuple(t.end for t in parts)
    return _Name(texts, ends, parts[0].start, is_table, end + 1)


def _has_alias(tokens: list[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].token_type in _ALIASED


def _is_name(tokens: list[Token], at: int) -> bool:
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


def _tokens(query: str) -> list[Token]:
    try:
        return sqlglot.tokenize(query, read="spark")
    except TokenError as error:
        message = f"this is not SQL: {error}"
        raise UsageError(message, "Check quotes and parentheses.") from error
