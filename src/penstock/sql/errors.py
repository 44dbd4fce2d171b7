"""Errors in a statement: line, column, and the line itself with a caret, with secrets masked.

Secrets are recognized by the word before them, even if it is misspelled::

    PASSWORD 'hunter2'    pasword = hunter2    'host=db password=hunter2'    'postgresql://me:hunter2@db/shop'

A statement that does not parse cannot say which of its values are secret. Therefore every value after a word like
``password`` is masked, quoted or not, and so is the password in a URL or before ``@host``. A reference (``env:``,
``file:``) is not a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.errors import UsageError
from penstock.secret import is_reference

__all__ = ["MASK", "Position", "SqlError", "StartPosition", "error_at", "position_at", "secret_spans"]


class SqlError(UsageError):
    """A statement that does not parse. `excerpt` has two lines: the statement's, with secrets masked, and the caret.

    The message contains the excerpt, the line and the column as well.
    """

    def __init__(self, message: str, hint: str = "", line: int = 1, column: int = 1, excerpt: str = "") -> None:
        super().__init__(message, hint)
        self.args = (message, hint, line, column, excerpt)
        self.line = line
        self.column = column
        self.excerpt = excerpt


_WIDTH = 100
"""Longer lines are cut on both sides of the caret."""


@dataclass(frozen=True)
class StartPosition:
    """The line and column at which a statement begins in its file."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True)
class Position:
    """A position in a file, and the excerpt there. It contains no secrets, so it may outlive the statement."""

    line: int
    column: int
    excerpt: str

    def error(self, what: str, hint: str) -> SqlError:
        """Return the error at this position."""
        message = f"line {self.line}, column {self.column}: {what}\n{self.excerpt}"
        return SqlError(message, hint, self.line, self.column, self.excerpt)


def position_at(text: str, place: int, begins: StartPosition | None = None) -> Position:
    """Return the position of an offset of a statement."""
    begins = begins or StartPosition()
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    offset = begins.column - 1 if line == 1 else 0
    return Position(begins.line + line - 1, column + offset, _excerpt(text, place))


def error_at(text: str, place: int, what: str, hint: str, begins: StartPosition | None = None) -> SqlError:
    """Return the error at an offset of a statement."""
    return position_at(text, place, begins).error(what, hint)


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
    """Return a line with its secrets masked, and the caret's column in it."""
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
_LIKE_A_SECRET = re.compile(r"pass|pwd|secret|token|credential|redact[\s_]+key", re.IGNORECASE)
_TEXT = r"""'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|`[^`]*(?:`|\Z)"""
_QUOTED = re.compile(_TEXT)
_WORD = re.compile(r"redact\s+key\b|[^\W\d_]+(?:_[^\W\d_]+)*", re.IGNORECASE)
_BLANK = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_VALUE = re.compile(
    rf"(?:{_BLANK}*={_BLANK}*|{_BLANK}+|(?=['\"`]))(?P<value>{_TEXT}|[^\s,;'\"`()=][^\s,;'\"`()]*)", re.DOTALL
)
_LAST_WORD = re.compile(r"(\w+)\s*=?\s*\Z")
_LONGEST_WORD = 50
_URL = re.compile(r"://(?P<rest>[^\s'\"`]*)")
_LOGIN = re.compile(r"(?<![\w.%+:/-])[\w.%+-]+:(?P<password>[^\s@'\"`,/]+)@")
_PORT = re.compile(r"[^:/\[]*:(?P<port>[^/?,]*)")
_NOT_SECRET = {"true", "false", "on", "off", "for", "with", "from", "as", "connection", "connections"}


def secret_spans(text: str) -> list[_Span]:
    """Return the spans of secrets, in order and without overlaps."""
    apart: list[_Span] = []
    for start, end in sorted([*_named(text), *_in_urls(text)]):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart


def _named(text: str) -> Iterator[_Span]:
    """Find values after a word like password, outside and inside strings."""
    at = 0
    for quoted in _QUOTED.finditer(text):
        yield from _after_words(text, at, quoted.start(), len(text))
        yield from _after_words(text, quoted.start() + 1, quoted.end(), _content_end(quoted[0], quoted.end()))
        at = quoted.end()
        last = _LAST_WORD.search(quoted[0][-_LONGEST_WORD:-1])
        if last and _names_a_secret(last[1]) and text[at : at + 1].strip().strip(",;)"):  # an earlier quote is missing
            yield at, min([*(found for quote in "'\"`" if (found := text.find(quote, at)) >= 0), len(text)])
    yield from _after_words(text, at, len(text), len(text))


def _content_end(quoted: str, end: int) -> int:
    """Return the end of a string's content: before its closing quote, if it has one."""
    return end - 1 if len(quoted) > 1 and quoted[-1] == quoted[0] else end


def _after_words(text: str, start: int, end: int, until: int) -> Iterator[_Span]:
    """Find values that follow a word between `start` and `end`, up to `until`."""
    for word in _WORD.finditer(text, start, end):
        value = _VALUE.match(text, word.end(), until) if _names_a_secret(word[0]) else None
        if value is not None and not _is_public(value["value"]):
            yield value.span("value")


def _names_a_secret(word: str) -> bool:
    last = word.rpartition("_")[2].lower()
    return bool(_LIKE_A_SECRET.search(word) or get_close_matches(last, _SECRETS, 1, 0.75))


def _is_public(value: str) -> bool:
    """Return whether a value is no secret: a reference, or a keyword."""
    inner = value[1:-1] if value[0] in "'\"`" else value
    return is_reference(inner) or value.lower() in _NOT_SECRET


def _in_urls(text: str) -> Iterator[_Span]:
    """Find passwords in URLs, also one that contains a slash and therefore appears in the position of the port.

    ``user:password@host`` without a scheme is no URL, but may be in the list of a source's brokers.
    """
    for login in _LOGIN.finditer(text):
        yield login.span("password")
    for url in _URL.finditer(text):
        start, end = url.span("rest")
        host = text.rfind("@", start, end) + 1 or start
        colon = text.find(":", start, host)
        if colon >= 0:
            yield colon + 1, host - 1
        port = _PORT.match(text, host, end)
        if port and port["port"] and not port["port"].isdigit():
            yield port.span("port")
