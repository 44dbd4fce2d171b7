r"""A file of statements, divided at semicolons: not those in texts, names and comments.

Statements of ours and queries for Spark stand side by side, and differ in how a text ends: in Spark's, a backslash
makes a quote part of the text, and double quotes are texts, too. So each statement is read by the rules of whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.sql.cursor import after_blanks
from penstock.sql.errors import Beginning
from penstock.sql.grammar import is_ours

__all__ = ["Piece", "divided"]

_NAMES = r"`(?:[^`]|``)*(?:`|\Z)"
_OURS = re.compile(rf"""(?P<blank>--|/\*)|'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|{_NAMES}|(?P<end>;)""")
_SPARKS = re.compile(
    rf"""(?P<blank>--|/\*)|'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z)|{_NAMES}|(?P<end>;)""", re.DOTALL
)
_BEGINNING = 1000
"""So many characters are enough to see whose a statement is."""


@dataclass(frozen=True)
class Piece:
    """One statement, without its semicolon, and where it begins in the file."""

    text: str
    begins: Beginning


def divided(script: str) -> Iterator[Piece]:
    """Yield the statements of a script; blanks and comments before each are left out."""
    at = 0
    while at < len(script):
        start = after_blanks(script, at)
        end = _end(script, start)
        text = script[start:end].rstrip()
        if text:
            line, column = script.count("\n", 0, start) + 1, start - script.rfind("\n", 0, start)
            yield Piece(text, Beginning(line, column))
        at = end + 1


def _end(script: str, start: int) -> int:
    """Return where the semicolon of a statement stands, or the end of the script."""
    lexemes = _OURS if is_ours(script[start : start + _BEGINNING]) else _SPARKS
    at = start
    while found := lexemes.search(script, at):
        if found["end"]:
            return found.start()
        at = after_blanks(script, found.start()) if found["blank"] else found.end()
    return len(script)
