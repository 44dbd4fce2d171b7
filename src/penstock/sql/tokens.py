"""The tokens of our statements, by sqlglot: words, numbers, 'texts', and names in "double quotes" or `backticks`.

There are no keywords here: a word is what the grammar takes it for. A quote within a text or a name is doubled, and a
backslash is a character like any other.
"""

from __future__ import annotations

import re
from typing import ClassVar

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from penstock.sql.excerpt import Beginning, error_at

__all__ = ["after_blanks", "leading_words", "tokenized", "unreadable"]

_MISSING = re.compile(r"Missing (.) from \d+:(\d+)")
_BLANK = re.compile(r"(?:\s+|--[^\r\n]*)*")
_COMMENT = re.compile(r"/\*|\*/")
_WORD = re.compile(r"[^\W\d]\w*")


class _Statements(Tokenizer):
    QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
    IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
    STRING_ESCAPES: ClassVar[list[str]] = ["'"]
    KEYWORDS: ClassVar[dict[str, TokenType]] = {}
    COMMANDS: ClassVar[set[TokenType]] = set()


def tokenized(text: str, begins: Beginning | None = None) -> list[Token]:
    """Return the tokens; a quote or comment that does not end is an error at its beginning."""
    try:
        return _Statements().tokenize(text)
    except TokenError as error:
        raise unreadable(text, error, begins) from None


def unreadable(text: str, error: TokenError, begins: Beginning | None = None) -> Exception:
    """Return the error for a text that sqlglot cannot divide into tokens."""
    missing = _MISSING.search(str(error.__cause__ or error))
    if missing is not None:
        what, place = f"the {missing[1]} here has no other one that ends it", min(int(missing[2]), len(text))
        return error_at(text, place, f"this is not SQL: {what}", f"Close it with {missing[1]}.", begins)
    place = max(text.rfind("/*"), 0)
    what, remedy = "this is not SQL: a comment here has no end", "End it with */; check quotes, too."
    return error_at(text, place, what, remedy, begins)


def leading_words(text: str, most: int = 3) -> tuple[str, ...]:
    """Return the first words of a statement, in upper case, whatever follows them."""
    words: list[str] = []
    at = after_blanks(text, 0)
    while len(words) < most and (found := _WORD.match(text, at)):
        words.append(found[0].upper())
        at = after_blanks(text, found.end())
    return tuple(words)


def after_blanks(text: str, at: int) -> int:
    """Return where something stands that is neither a blank nor a comment."""
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank else at
        if not text.startswith("/*", at):
            return at
        at = _after_comment(text, at)


def _after_comment(text: str, at: int) -> int:
    """Return the end of a comment; there may be comments in it. One that does not end goes on to the end."""
    depth = 0
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
