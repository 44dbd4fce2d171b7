"""``AS OF TIMESTAMP '…'`` and ``AS OF LSN '…'`` behind the name of a table.

``of`` may be an alias, too: it is one unless a kind or a value follows. Spark's own way to write it, ``TIMESTAMP AS
OF``, is for tables of Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError
from penstock.positions import Lsn, parse_as_of
from penstock.sql.excerpt import error_at
from penstock.sql.sql_error import SqlError

__all__ = ["Clause", "clause_at"]

_VALUES = {TokenType.STRING, TokenType.NUMBER}
_KINDS = {"TIMESTAMP": datetime, "LSN": Lsn}
_SPARKS = ("TIMESTAMP", "VERSION", "SYSTEM_TIME", "SYSTEM_VERSION")
_EXAMPLE = "Write: AS OF TIMESTAMP '2026-11-15T12:00:00Z', or AS OF LSN '16/B374D848'."


@dataclass(frozen=True)
class Clause:
    """What a table is asked for as of, and the place of the clause's last token."""

    as_of: Lsn | datetime
    last: int


def clause_at(tokens: Sequence[Token], at: int, query: str) -> Clause | None:
    """Read the clause that begins at a token, if one does; a wrong one is an error at its place."""
    words = [token.text.upper() for token in tokens[at : at + 4]]
    words = words[1:] if words[:1] == ["FOR"] else words[:3]
    if words[1:] == ["AS", "OF"] and words[0] in _SPARKS:
        raise _wrong(query, tokens[at], f"of a live table, AS OF stands before {words[0]}", _EXAMPLE)
    if words[:2] != ["AS", "OF"] or len(words) < 3:
        return None
    kind, value = words[2], tokens[at + 3] if at + 3 < len(tokens) else None
    if kind not in (*_KINDS, "VERSION") and tokens[at + 2].token_type not in _VALUES:
        return None
    if kind not in _KINDS or value is None or value.token_type is not TokenType.STRING:
        raise _wrong(query, tokens[at + 2], "AS OF is followed by TIMESTAMP or LSN and a text", _EXAMPLE)
    try:
        found = parse_as_of(value.text)
    except UsageError as error:
        raise _wrong(query, value, error.message, error.remedy) from error
    if not isinstance(found, _KINDS[kind]):
        raise _wrong(query, value, f"{value.text!r} is no {'time' if kind == 'TIMESTAMP' else 'LSN'}", _EXAMPLE)
    return Clause(found, at + 3)


def _wrong(query: str, token: Token, what: str, remedy: str) -> SqlError:
    return error_at(query, token.start, what, remedy)
