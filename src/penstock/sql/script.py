r"""Split a script into statements at semicolons, except those in strings, identifiers and comments.

A script may mix Penstock's statements and queries for Spark, which have different quoting rules: in Spark SQL, a
backslash escapes a quote, and double quotes enclose strings. Each statement is scanned by the rules of its language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.sql.cursor import after_blanks
from penstock.sql.errors import StartPosition
from penstock.sql.grammar import is_penstock_statement

__all__ = ["Piece", "split_statements"]

_NAMES = r"`(?:[^`]|``)*(?:`|\Z)"
_OURS = re.compile(rf"""(?P<blank>--|/\*)|'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|{_NAMES}|(?P<end>;)""")
_SPARKS = re.compile(
    rf"""(?P<blank>--|/\*)|'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z)|{_NAMES}|(?P<end>;)""", re.DOTALL
)
_BEGINNING = 1000
"""The number of characters from which the language of a statement is determined."""


@dataclass(frozen=True)
class Piece:
    """One statement without its semicolon, and its position in the file."""

    text: str
    begins: StartPosition


def split_statements(script: str) -> Iterator[Piece]:
    """Yield the statements of a script, without white space and comments before each."""
    at = 0
    while at < len(script):
        start = after_blanks(script, at)
        end = _end(script, start)
        text = script[start:end].rstrip()
        if text:
            line, column = script.count("\n", 0, start) + 1, start - script.rfind("\n", 0, start)
            yield Piece(text, StartPosition(line, column))
        at = end + 1


def _end(script: str, start: int) -> int:
    """Return the offset of a statement's semicolon, or the end of the script."""
    lexemes = _OURS if is_penstock_statement(script[start : start + _BEGINNING]) else _SPARKS
    at = start
    while found := lexemes.search(script, at):
        if found["end"]:
            return found.start()
        at = after_blanks(script, found.start()) if found["blank"] else found.end()
    return len(script)
