"""Secrets in a text that is about to be shown: found by what stands before them, also where that is misspelt.

::

    PASSWORD 'hunter2'    pasword = hunter2    'host=db password=hunter2'    'postgresql://me:hunter2@db/shop'

A statement that cannot be read cannot be asked which of its values are secret. So whatever follows a word like
``password`` is taken for one, in quotes or not, and so is the password in a URL. A reference (``env:``, ``file:``) is
not a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from penstock.secret import is_reference

__all__ = ["MASK", "secret_spans"]

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
