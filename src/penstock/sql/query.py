"""Resolve the names of live tables in a query: replace them by the names of views, and change nothing else of the text.

``shop.orders`` in table position, optionally followed by ``AS OF``, becomes a view's name with the alias ``orders``,
unless the query gives it an alias. ``shop.orders.id`` elsewhere becomes ``orders.id`` if a table ``shop.orders``
without an explicit alias is visible there. Strings, comments and names of other tables are not changed.

Dotted names are found in sqlglot's tokens. A name is in table position after FROM, JOIN or a comma between tables, also
in parentheses. The *scope* of a name is its query: a subquery sees the tables of the enclosing queries, but not vice
versa.

``AS OF TIMESTAMP '…'`` and ``AS OF LSN '…'`` follow the name of a table. ``of`` can also be an alias: it is one unless
a keyword or a literal follows. Spark's own notation, ``TIMESTAMP AS OF``, is only for Spark's tables.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlglot
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError
from penstock.positions import Lsn, parse_as_of
from penstock.sql.cursor import after_blanks, leading_words, shown, tokenize_error
from penstock.sql.errors import SqlError, error_at

__all__ = [
    "Clause",
    "Name",
    "Place",
    "Resolved",
    "TableReference",
    "clause_at",
    "dotted_names",
    "query_tokens",
    "resolve",
]

_ALIASES = Spark.parser_class.TABLE_ALIAS_TOKENS - {
    TokenType.LIMIT, TokenType.OFFSET, TokenType.PIVOT, TokenType.UNPIVOT,
}  # fmt: skip
_ALIASED = _ALIASES | {TokenType.ALIAS, TokenType.TABLE_SAMPLE}  # an alias follows the sample


@dataclass(frozen=True)
class TableReference:
    """A referenced table, by its name in the mapping, and its AS OF position or time."""

    table: str
    as_of: Lsn | datetime | None = None


@dataclass(frozen=True)
class Resolved:
    """The rewritten query, and the views that it needs, by name."""

    text: str
    views: dict[str, TableReference]


@dataclass(frozen=True)
class _Table:
    """A live table in table position: the reference, the end of its text, and the alias that resolution adds."""

    name: Name
    wanted: TableReference
    end: int
    alias: str | None


def resolve(query: str, tables: Mapping[tuple[str, ...], str], prefix: str) -> Resolved:
    """Replace the names of `tables` (by their parts in lower case) with views named `prefix` and a number."""
    tokens = query_tokens(query)
    names = list(dotted_names(query, tokens))
    found = [table for name in names if (table := _table(query, tokens, name, tables)) is not None]
    views: dict[TableReference, str] = {}
    changes = []
    for table in found:
        view = views.setdefault(table.wanted, f"{prefix}{len(views) + 1}")
        new = view if table.alias is None else f"{view} AS {_quoted(table.alias)}"
        changes.append((table.name.start, table.end, new))
    changes += [change for name in names if (change := _column(name, found, tables)) is not None]
    pieces, at = [], 0
    for start, end, new in sorted(changes):
        pieces += [query[at:start], new]
        at = end
    return Resolved("".join([*pieces, query[at:]]), {view: wanted for wanted, view in views.items()})


def _table(query: str, tokens: Sequence[Token], name: Name, tables: Mapping[tuple[str, ...], str]) -> _Table | None:
    """Return the live table that a name in table position refers to, if any."""
    known = _longest_known(name, tables)
    if known is None or known[1] != len(name.parts) or name.place is Place.ELSEWHERE:
        return None
    clause = clause_at(tokens, name.following, query) if name.place is Place.TABLE else None
    following = clause.last + 1 if clause else name.following
    end = tokens[clause.last].end + 1 if clause else name.ends[-1] + 1
    is_bare = name.place is Place.BARE_TABLE or _has_alias(tokens, following)
    return _Table(
        name, TableReference(known[0], clause.as_of if clause else None), end, None if is_bare else name.parts[-1]
    )


def _column(name: Name, found: Sequence[_Table], tables: Mapping[tuple[str, ...], str]) -> tuple[int, int, str] | None:
    """Return the replacement for a column that is qualified with the full name of a live table."""
    known = _longest_known(name, tables)
    if known is None or known[1] == len(name.parts):
        return None
    aliases = [
        each.alias
        for each in found
        if each.wanted.table == known[0] and each.alias and each.name.is_seen_from(name.scope)
    ]
    return (name.start, name.ends[known[1] - 1] + 1, _quoted(aliases[-1])) if aliases else None


def _longest_known(name: Name, tables: Mapping[tuple[str, ...], str]) -> tuple[str, int] | None:
    lower = tuple(part.lower() for part in name.parts)
    for parts in (3, 2):
        if lower[:parts] in tables and len(lower) >= parts:
            return tables[lower[:parts]], parts
    return None


def _quoted(alias: str) -> str:
    return "`" + alias.replace("`", "``") + "`"


def _has_alias(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].token_type in _ALIASED


_NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
_TABLES_FOLLOW = {TokenType.FROM, TokenType.JOIN}
_TABLES_END = {
    TokenType.SELECT, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.SORT_BY,
    TokenType.CLUSTER_BY, TokenType.DISTRIBUTE_BY, TokenType.LIMIT, TokenType.UNION, TokenType.EXCEPT,
    TokenType.INTERSECT, TokenType.WINDOW, TokenType.QUALIFY,
}  # fmt: skip
"""Without ON and USING: a comma after them, outside of parentheses, precedes a table."""
_BEFORE_TABLES = {TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN}
_QUERIES = {TokenType.SELECT, TokenType.WITH, TokenType.FROM}
_BEFORE_TABLE = {TokenType.L_PAREN, TokenType.FARROW, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT}
_COMMANDS = ("EXPLAIN", "SHOW")
"""Commands whose remaining text sqlglot returns as one token."""
_DESCRIBE = ("DESCRIBE", "DESC")
_DESCRIBE_WORDS = {"DESCRIBE", "DESC", "TABLE", "EXTENDED", "FORMATTED"}


class Place(enum.Enum):
    """The syntactic position of a name."""

    TABLE = "table"
    """A table, optionally followed by an alias."""
    BARE_TABLE = "bare table"
    """A table that cannot have an alias: in ``DESCRIBE``, ``TABLE``, ``SHOW COLUMNS FROM``."""
    ELSEWHERE = "elsewhere"
    """A column, a function or anything else."""


@dataclass(frozen=True)
class Name:
    """A dotted name in the text: its parts, offsets, syntactic position and scope."""

    parts: tuple[str, ...]
    start: int
    ends: tuple[int, ...]
    """The offset of each part's last character."""
    following: int
    """The index of the token after the name."""
    place: Place
    scope: tuple[int, ...]

    def is_seen_from(self, scope: tuple[int, ...]) -> bool:
        """Return whether a table here is visible in `scope`: the same scope, or one nested in it."""
        return scope[: len(self.scope)] == self.scope


def query_tokens(query: str) -> list[Token]:
    """Return the tokens of a query in Spark's dialect; raise `SqlError` if it cannot be tokenized."""
    text = query
    if leading_words(query, 1)[:1] in [(command,) for command in _COMMANDS]:
        start = after_blanks(query, 0)
        end = start + len(leading_words(query, 1)[0])
        text = query[:start] + " " * (end - start) + query[end:]
    try:
        return sqlglot.tokenize(text, read="spark")
    except TokenError as error:
        raise tokenize_error(query, error, strings="'\"") from None


@dataclass
class _Walk:
    """The state while walking a query: per open parenthesis, whether tables are expected, and the scope."""

    expects_table: list[bool] = field(default_factory=lambda: [False])
    scopes: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    queries: int = 0

    def opens(self, within_tables: bool, is_query: bool) -> None:
        """Enter a parenthesis: a subquery, a parenthesized join, or arguments."""
        self.queries += is_query
        scope = self.scopes[-1]
        self.scopes.append((*scope, self.queries) if is_query else scope)
        self.expects_table.append(self.expects_table[-1] and within_tables)

    def closes(self) -> None:
        """Leave a parenthesis."""
        if len(self.scopes) > 1:
            self.scopes.pop()
            self.expects_table.pop()


def dotted_names(query: str, tokens: Sequence[Token]) -> Iterator[Name]:
    """Yield the names that have at least two parts, from left to right."""
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
    """Determine the syntactic position of the name at a token from the tokens before it."""
    before = tokens[at - 1].token_type if at else None
    if before is TokenType.USING or (expects_table and before in _BEFORE_TABLES):
        return Place.TABLE  # JOIN … USING is followed by a parenthesis, MERGE … USING by a table
    if before is TokenType.TABLE and (at == 1 or tokens[at - 2].token_type in _BEFORE_TABLE):
        return Place.BARE_TABLE
    if before is TokenType.L_PAREN and at > 1 and tokens[at - 2].token_type is TokenType.TABLE:
        return Place.BARE_TABLE
    describes = leading_words(query, 1)[:1] in [(word,) for word in _DESCRIBE]
    if describes and all(token.text.upper() in _DESCRIBE_WORDS for token in tokens[:at]):
        return Place.BARE_TABLE
    return Place.ELSEWHERE


def _parts_at(tokens: Sequence[Token], at: int) -> list[Token]:
    """Return the parts of the dotted name that begins at a token."""
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
    """Return whether a token is a name: a plain or quoted name, a keyword next to a dot, or a star after a dot."""
    if at >= len(tokens):
        return False
    if tokens[at].token_type in _NAMES:
        return True
    dotted = at > 0 and tokens[at - 1].token_type is TokenType.DOT
    leads = at + 1 < len(tokens) and tokens[at + 1].token_type is TokenType.DOT
    if dotted and tokens[at].token_type is TokenType.STAR:
        return True
    return (dotted or leads) and tokens[at].text.isidentifier()


_VALUES = {TokenType.STRING, TokenType.NUMBER}
_KINDS = {"TIMESTAMP": datetime, "LSN": Lsn}
_SPARK_KINDS = ("TIMESTAMP", "VERSION", "SYSTEM_TIME", "SYSTEM_VERSION")
_AS_OF = "AS OF { TIMESTAMP | LSN } 'string'"
_EXAMPLE = "For example: AS OF TIMESTAMP '2026-11-15T12:00:00Z', or AS OF LSN '16/B374D848'."


@dataclass(frozen=True)
class Clause:
    """The position or time of an AS OF clause, and the index of its last token."""

    as_of: Lsn | datetime
    last: int


def clause_at(tokens: Sequence[Token], at: int, query: str) -> Clause | None:
    """Read the AS OF clause that begins at a token, if there is one; raise `SqlError` if it is invalid."""
    words = [token.text.upper() for token in tokens[at : at + 4]]
    words = words[1:] if words[:1] == ["FOR"] else words[:3]
    if words[1:] == ["AS", "OF"] and words[0] in _SPARK_KINDS:
        raise _syntax_error(query, tokens[at], f"AS OF before {words[0]}")
    if words[:2] != ["AS", "OF"] or len(words) < 3:
        return None
    kind, value = words[2], tokens[at + 3] if at + 3 < len(tokens) else None
    if kind not in (*_KINDS, "VERSION") and tokens[at + 2].token_type not in _VALUES:
        return None
    if kind not in _KINDS or value is None or value.token_type is not TokenType.STRING:
        raise _syntax_error(query, value if kind in _KINDS else tokens[at + 2], _AS_OF)
    return Clause(_as_of(query, kind, value), at + 3)


def _as_of(query: str, kind: str, value: Token) -> Lsn | datetime:
    """Return the position or time; both have to be what the keyword says."""
    invalid = f'invalid {"timestamp" if kind == "TIMESTAMP" else "LSN"} "{value.text}"'
    try:
        found = parse_as_of(value.text)
    except UsageError as error:
        if "no time zone" in error.message:
            raise _wrong(query, value, error.message, error.hint) from error
        raise _wrong(query, value, invalid, _EXAMPLE) from error
    if not isinstance(found, _KINDS[kind]):
        raise _wrong(query, value, invalid, _EXAMPLE)
    return found


def _syntax_error(query: str, token: Token | None, expected: str) -> SqlError:
    """Return the error for an unexpected token; None is the end of the query."""
    if token is None:
        return error_at(query, len(query.rstrip()), f"syntax error at end of input: expected {expected}", _EXAMPLE)
    near = shown(query, token.start, token.end + 1)
    return _wrong(query, token, f'syntax error at or near "{near}": expected {expected}', _EXAMPLE)


def _wrong(query: str, token: Token, what: str, hint: str) -> SqlError:
    return error_at(query, token.start, what, hint)
