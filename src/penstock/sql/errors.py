"""What is wrong with a statement, and where: line, column, and the line itself with a caret under the place.

A place in a statement, for people: line, column, and the line with a caret under the place, without secrets.

Secrets in a text that is about to be shown: found by what stands before them, also where that is misspelt.

::

    PASSWORD 'hunter2'    pasword = hunter2    'host=db password=hunter2'    'postgresql://me:hunter2@db/shop'

A statement that cannot be read cannot be asked which of its values are secret. So whatever follows a word like
``password`` is taken for one, in quotes or not, and so is the password in a URL. A reference (``env:``, ``file:``) is
not a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.errors import UsageError
from penstock.secret import is_reference

__all__ = ["MASK", "Beginning", "SqlError", "error_at", "secret_spans"]


class SqlError(UsageError):
    """A statement that cannot be read. `excerpt` is two lines: the statement's, without secrets, and the caret.

    The message holds them, and the place, as well.
    """

    def __init__(self, message: str, hint: str = "", line: int = 1, column: int = 1, excerpt: str = "") -> None:
        super().__init__(message, hint)
        self.args = (message, hint, line, column, excerpt)
        self.line = line
        self.column = column
        self.excerpt = excerpt


_WIDTH = 100
"""Longer lines are cut around the place."""


@dataclass(frozen=True)
class Beginning:
    """Where a statement begins in the file that it is of."""

    line: int = 1
    column: int = 1


def error_at(text: str, place: int, what: str, hint: str, begins: Beginning | None = None) -> SqlError:
    """Return the error at a place of a statement."""
    begins = begins or Beginning()
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    offset = begins.column - 1 if line == 1 else 0
    line, column, excerpt = begins.line + line - 1, column + offset, _excerpt(text, place)
    return SqlError(f"line {line}, column {column}: {what}\n{excerpt}", hint, line, column, excerpt)


def _excerpt(text: str, place: int) -> str:
    begin = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    line, caret = _masked(text, begin, end if end >= 0 else len(text), place)
    line = "".join(char if char.isprintable() else " " for char in line)
    if len(line) > _WIDTH:
        line, caret = _cut(line, caret)
    line = line.rstrip()
    indent = len(line) - len(line.lstrip()) if line.strip() else 0
    indent = min(indent, caret)
    return f"  {line[indent:]}\n  {' ' * (caret - indent)}^"


def _masked(text: str, begin: int, end: int, place: int) -> tuple[str, int]:
    """Return a line with its secrets masked, and where the place is in it then."""
    pieces, at, caret = [], begin, place - begin
    for first, last in secret_spans(text):
        if last <= begin or first >= end:
            continue
        first, last = max(first, begin), min(last, end)
        pieces += [text[at:first], MASK]
        if place >= last:
            caret += len(MASK) - (last - first)
        elif place > first:
            caret -= place - first
        at = last
    return "".join([*pieces, text[at:end]]), caret


def _cut(line: str, caret: int) -> tuple[str, int]:
    start = max(0, min(caret - _WIDTH // 2, len(line) - _WIDTH))
    shown = line[start : start + _WIDTH]
    before, after = "…" if start else "", "…" if start + _WIDTH < len(line) else ""
    return f"{before}{shown}{after}", caret - start + len(before)


MASK = "***"
_Span = tuple[int, int]
_SECRETS = ("password", "passphrase", "secret", "token", "credentials")
_LIKE_A_SECRET = re.compile(r"pass|pwd|secret|token|credential", re.IGNORECASE)
_TEXT = r"""'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|`[^`]*(?:`|\Z)"""
_QUOTED = re.compile(_TEXT)
_WORD = re.compile(r"[^\W\d_]+(?:_[^\W\d_]+)*")
_BLANK = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_VALUE = re.compile(
    rf"(?:{_BLANK}*={_BLANK}*|{_BLANK}+|(?=['\"`]))(?P<value>{_TEXT}|[^\s,;'\"`()=][^\s,;'\"`()]*)", re.DOTALL
)
_LAST_WORD = re.compile(r"(\w+)\s*=?\s*\Z")
_LONGEST_WORD = 50
_URL = re.compile(r"://(?P<rest>[^\s'\"`]*)")
_PORT = re.compile(r"[^:/\[]*:(?P<port>[^/?,]*)")
_SHOWN = {"true", "false", "on", "off", "for", "with", "from", "as", "connection", "connections"}


def secret_spans(text: str) -> list[_Span]:
    """Return where secrets stand, in order, none within another."""
    apart: list[_Span] = []
    for start, end in sorted([*_named(text), *_in_urls(text)]):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart


def _named(text: str) -> Iterator[_Span]:
    """Find what follows a word like password, outside of texts and in them."""
    at = 0
    for quoted in _QUOTED.finditer(text):
        yield from _after_words(text, at, quoted.start(), len(text))
        yield from _after_words(text, quoted.start() + 1, quoted.end(), _content_end(quoted[0], quoted.end()))
        at = quoted.end()
        last = _LAST_WORD.search(quoted[0][-_LONGEST_WORD:-1])
        if (
            last and _is_like_a_secret(last[1]) and text[at : at + 1].strip().strip(",;)")
        ):  # a quote was left out before
            yield at, min([*(found for quote in "'\"`" if (found := text.find(quote, at)) >= 0), len(text)])
    yield from _after_words(text, at, len(text), len(text))


def _content_end(quoted: str, end: int) -> int:
    """Return where the content of a text ends: before the quote that ends it, if one does."""
    return end - 1 if len(quoted) > 1 and quoted[-1] == quoted[0] else end


def _after_words(text: str, start: int, end: int, until: int) -> Iterator[_Span]:
    """Find values that follow a word between `start` and `end`, as far as they stand before `until`."""
    for word in _WORD.finditer(text, start, end):
        value = _VALUE.match(text, word.end(), until) if _is_like_a_secret(word[0]) else None
        if value is not None and not _is_shown(value["value"]):
            yield value.span("value")


def _is_like_a_secret(word: str) -> bool:
    last = word.rpartition("_")[2].lower()
    return bool(_LIKE_A_SECRET.search(word) or get_close_matches(last, _SECRETS, 1, 0.75))


def _is_shown(value: str) -> bool:
    """Say whether this is no secret: a reference, or a word of the language."""
    inner = value[1:-1] if value[0] in "'\"`" else value
    return is_reference(inner) or value.lower() in _SHOWN


def _in_urls(text: str) -> Iterator[_Span]:
    """Find passwords in URLs; also one with a slash in it, which ends up where the port should be."""
    for url in _URL.finditer(text):
        start, end = url.span("rest")
        host = text.rfind("@", start, end) + 1 or start
        colon = text.find(":", start, host)
        if colon >= 0:
            yield colon + 1, host - 1
        port = _PORT.match(text, host, end)
        if port and port["port"] and not port["port"].isdigit():
            yield port.span("port")
