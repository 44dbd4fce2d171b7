"""Queries over live tables: names of ours are found in the text and replaced; nothing else of it is touched.

``shop.orders`` in table position becomes a view's name with the alias ``orders`` (unless it has one of its own), also
with an ``AS OF`` behind it. ``shop.orders.id`` elsewhere becomes ``orders.id`` where such a table is in sight, without
an alias of its own. Strings, comments and everything that is not a captured table stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import Token, TokenType

from penstock.positions import Lsn
from penstock.sql.as_of import clause_at
from penstock.sql.query_names import Name, Place, dotted_names, query_tokens

__all__ = ["Resolved", "Wanted", "resolve"]

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
class _Table:
    """A table of ours in table position: what is wanted, the text's end there, and the alias if it gets one of us."""

    name: Name
    wanted: Wanted
    end: int
    alias: str | None


def resolve(query: str, tables: Mapping[tuple[str, ...], str], prefix: str) -> Resolved:
    """Replace the names of `tables` (by their parts, lower case) with views called `prefix` and a number."""
    tokens = query_tokens(query)
    names = list(dotted_names(query, tokens))
    found = [table for name in names if (table := _table(query, tokens, name, tables)) is not None]
    views: dict[Wanted, str] = {}
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
    """Return the table of ours that a name in table position means."""
    known = _longest_known(name, tables)
    if known is None or known[1] != len(name.parts) or name.place is Place.ELSEWHERE:
        return None
    clause = clause_at(tokens, name.following, query) if name.place is Place.TABLE else None
    following = clause.last + 1 if clause else name.following
    end = tokens[clause.last].end + 1 if clause else name.ends[-1] + 1
    is_bare = name.place is Place.BARE_TABLE or _has_alias(tokens, following)
    return _Table(name, Wanted(known[0], clause.as_of if clause else None), end, None if is_bare else name.parts[-1])


def _column(name: Name, found: Sequence[_Table], tables: Mapping[tuple[str, ...], str]) -> tuple[int, int, str] | None:
    """Return the change of a name that begins with a table of ours, and goes on with a column of it."""
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
