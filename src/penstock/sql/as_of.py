"""``AS OF TIMESTAMP '…'`` and ``AS OF LSN '…'`` behind the name of a table.

``of`` may be an alias, too: it is one unless a kind or a value follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError
from penstock.positions import Lsn, parse_as_of

__all__ = ["Clause", "clause_at"]

_VALUES = {TokenType.STRING, TokenType.NUMBER}
_KINDS = {"TIMESTAMP": datetime, "LSN": Lsn}
_EXAMPLE = "Write: AS OF TIMESTAMP '2026-11-15T12:00:00Z', or AS OF LSN '16/B374D848'."


@dataclass(frozen=True)
class Clause:
    """What a table is asked for as of, and the place of the clause's last token."""

    as_of: Lsn | datetime
    last: int


def clause_at(tokens: Sequence[Token], at: int, query: str) -> Clause | None:
    """Read the clause that begins at a token, if one does; a `UsageError` tells line and column."""
    words = [token.text.upper() for token in tokens[at : at + 3]]
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


def _wrong(query: str, token: Token, what: str, remedy: str) -> UsageError:
    line, column = query.count("\n", 0, token.start) + 1, token.start - query.rfind("\n", 0, token.start)
    return UsageError(f"line {line}, column {column}: {what}", remedy)
