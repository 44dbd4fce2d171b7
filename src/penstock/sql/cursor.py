"""A cursor over the tokens of a statement, from which the grammar reads.

The cursor also records what the grammar would have accepted at the end of the text: completion parses an incomplete
statement and returns these records.

sqlglot provides the tokens: words, numbers, 'strings', and identifiers in "double quotes" or `backticks`. The tokenizer
has no keywords; the grammar decides what a word means. A quote inside a string or an identifier is doubled, and a
backslash is an ordinary character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import ClassVar

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from penstock.errors import UsageError
from penstock.sql.errors import MASK, Position, StartPosition, error_at, position_at, secret_spans
from penstock.sql.syntax.names import RESERVED

__all__ = ["StatementCursor", "after_blanks", "leading_words", "shown", "tokenize", "tokenize_error"]

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[^\W\d]\w*")
_SYNONYMS = {"SOURCE": "SOURCES", "SINK": "SINKS"}
_MAX_TOKEN = 40
"""The maximum length of a token in an error message."""


class StatementCursor:
    """Reads one statement, which may end with semicolons."""

    def __init__(self, text: str, begins: StartPosition | None = None) -> None:
        self._text = text
        self._begins = begins
        self._tokens = tokenize(text, begins)
        while self._tokens and self._tokens[-1].token_type is TokenType.SEMICOLON:
            self._tokens.pop()
        self._at = 0
        self._usage = ""
        self._reading = "an option"
        self._tried: dict[int, list[str]] = {}
        self._offered: list[str] = []
        self._named: list[str] = []

    # -- the methods of `penstock.sql.syntax.values.Cursor` -----------------------------------------------------------

    def place(self) -> int:
        """Return the offset of the next token; at the end, the offset after the last token."""
        return self._place_of(self._at)

    def accept(self, *phrase: str) -> bool:
        """Consume these words, or this symbol, if they come next; return whether they did."""
        self.offer(" ".join(phrase))
        self._tried.setdefault(self._at, []).append(" ".join(phrase))
        ahead = self._tokens[self._at : self._at + len(phrase)]
        if len(ahead) < len(phrase) or not all(map(_is_word, ahead, phrase)):
            return False
        self._at += len(phrase)
        return True

    def expect(self, *phrase: str) -> None:
        """Consume these words, or this symbol; raise an error for anything else."""
        if not self.accept(*phrase):
            raise self.expected(_quoted_symbol(" ".join(phrase)))

    def words(self) -> tuple[str, ...]:
        """Return the bare words that come next, in upper case."""
        found = []
        for token in self._tokens[self._at :]:
            if token.token_type is not TokenType.VAR:
                break
            found.append(token.text.upper())
        return tuple(found)

    def is_text(self) -> bool:
        """Return whether a string in single quotes comes next."""
        return self._is(TokenType.STRING)

    def text(self) -> str:
        """Consume a string in single quotes."""
        if not self.is_text():
            what = "a string in single quotes"
            raise self.expected(what)
        return self._take().text

    def number(self) -> str:
        """Consume a number and return its text."""
        place, sign = self._at, "-" if self.accept("-") else ""
        if not self._is(TokenType.NUMBER) or not _NUMBER.fullmatch(self._tokens[self._at].text):
            self._at = place
            what = "a number"
            raise self.expected(what)
        return sign + self._take().text

    def name(self, of: str) -> str:
        """Consume one name, bare or quoted; `of` names the kind of object for error messages."""
        if self._at == len(self._tokens):
            self._named.append(of)
        bare = self._is(TokenType.VAR) and self._tokens[self._at].text
        if bare and bare.upper() in RESERVED:
            hint = f'{bare.upper()} is a reserved word. To use it as a name, quote it: "{bare}".'
            raise self.expected(_expected_name(of), hint)
        return self.part(_expected_name(of))

    def part(self, what: str = "a name") -> str:
        """Consume one part of a dotted name; reserved words are allowed."""
        if self._is(TokenType.IDENTIFIER) and self._tokens[self._at].text:
            return self._take().text
        if self._is(TokenType.VAR) and _WORD.fullmatch(self._tokens[self._at].text):
            return self._take().text
        raise self.expected(what)

    def offer(self, *phrases: str) -> None:
        """Record phrases that could begin, or continue, at the end of the text."""
        left = self._tokens[self._at :]
        for phrase in phrases:
            words = phrase.split()
            if len(left) < len(words) and all(map(_is_word, left, words)):
                self._offered.append(" ".join(words[len(left) :]))

    def tried(self) -> list[str]:
        """Return the phrases that `accept` tried at the next token."""
        return list(dict.fromkeys(self._tried.get(self._at, [])))

    def usage(self, usage: str) -> str:
        """Set the syntax summary that hints show; return the previous one."""
        before, self._usage = self._usage, usage
        return before

    def reading(self, what: str) -> str:
        """Set the option or clause whose value comes next, for error messages; return the previous one."""
        before, self._reading = self._reading, what
        return before

    def expected(self, what: str = "", hint: str = "", place: int | None = None) -> UsageError:
        """Return the syntax error at an offset, by default that of the next token; without a hint, show the usage."""
        at = self._at if place is None else sum(token.start < place for token in self._tokens)
        suffix = f": expected {what}" if what else ""
        message = f"syntax error {self._at_or_near(at)}{suffix}"
        return self.error(message, hint or f"Syntax: {self._usage}", self._place_of(at))

    def unmatched(self, phrases: Iterable[str], hint: str) -> UsageError:
        """Return the syntax error at the first of the next tokens that continues none of these phrases."""
        ahead = self._tokens[self._at :]
        matched = (sum(1 for _ in takewhile(bool, map(_is_word, ahead, phrase.split()))) for phrase in phrases)
        return self.expected(hint=hint, place=self._place_of(self._at + max(matched, default=0)))

    def invalid(self, value: str, hint: str, place: int) -> UsageError:
        """Return the error for an invalid value of the option or clause that is being read."""
        return self.error(f'invalid value for {self._reading}: "{self._shown(value, place)}"', hint, place)

    def out_of_bounds(self, value: str, hint: str, place: int) -> UsageError:
        """Return the error for a number that this option or clause does not accept."""
        return self.error(f"value {self._shown(value, place)} is out of bounds for {self._reading}", hint, place)

    def error(self, message: str, hint: str, place: int | None = None) -> UsageError:
        """Return an error at an offset, by default that of the next token."""
        return error_at(self._text, self.place() if place is None else place, message, hint, self._begins)

    # -- methods for the grammar only ------------------------------------------------------------------------------

    def position(self, place: int) -> Position:
        """Return the position of an offset, for errors that are found later."""
        return position_at(self._text, place, self._begins)

    def is_at_end(self) -> bool:
        """Return whether every token is consumed."""
        return self._at == len(self._tokens)

    def ends(self) -> None:
        """Raise an error unless every token is consumed."""
        if not self.is_at_end():
            what = "end of statement"
            raise self.expected(what)

    def rest(self) -> str:
        """Consume all remaining tokens and return their text unchanged."""
        start = self.place()
        self._at = len(self._tokens)
        return self._text[start : self.place()]

    def offered(self) -> list[str]:
        """Return the phrases that could follow at the end of the text."""
        return list(dict.fromkeys(self._offered))

    def named(self) -> list[str]:
        """Return the kinds of objects that could be named at the end of the text."""
        return list(dict.fromkeys(self._named))

    def _is(self, kind: TokenType) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].token_type is kind

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _place_of(self, at: int) -> int:
        """Return the offset of a token; after the last one, its end."""
        if at < len(self._tokens):
            return self._tokens[at].start
        return self._tokens[-1].end + 1 if self._tokens else 0

    def _at_or_near(self, at: int) -> str:
        """Describe a token in PostgreSQL's words; mask a secret."""
        if at == len(self._tokens):
            return "at end of input"
        token = self._tokens[at]
        return f'at or near "{shown(self._text, token.start, token.end + 1)}"'

    def _shown(self, value: str, place: int) -> str:
        """Return a value for a message: printable, not too long, and masked if it is a secret of the statement."""
        return MASK if _is_secret(self._text, place, place + len(value)) else _shortened(value)


def shown(text: str, start: int, end: int) -> str:
    """Return a part of a statement for a message: printable, not too long, and masked if it contains a secret."""
    return MASK if _is_secret(text, start, end) else _shortened(text[start:end])


def _is_secret(text: str, start: int, end: int) -> bool:
    return any(first < end and start < last for first, last in secret_spans(text))


def _shortened(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    return printable if len(printable) <= _MAX_TOKEN else f"{printable[:_MAX_TOKEN]}…"


def _expected_name(of: str) -> str:
    """Describe an expected name: ``schema.table`` is a form, ``source`` a kind of object."""
    return "a name" if of == "name" else f"a {of} name" if of.isalpha() else of


def _quoted_symbol(phrase: str) -> str:
    """Quote a symbol, to set it apart from the punctuation of the message."""
    return phrase if phrase[:1].isalpha() else f'"{phrase}"'


def _is_word(token: Token, word: str) -> bool:
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    found, expected = token.text.upper(), word.upper()
    return not quoted and _SYNONYMS.get(found, found) == _SYNONYMS.get(expected, expected)


_MISSING = re.compile(r"Missing (.) from \d+:(\d+)")
_BLANK = re.compile(r"(?:\s+|--[^\r\n]*)*")
_COMMENT = re.compile(r"/\*|\*/")


class _Statements(Tokenizer):
    QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
    IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
    STRING_ESCAPES: ClassVar[list[str]] = ["'"]
    KEYWORDS: ClassVar[dict[str, TokenType]] = {}
    COMMANDS: ClassVar[set[TokenType]] = set()


def tokenize(text: str, begins: StartPosition | None = None) -> list[Token]:
    """Return the tokens; an unterminated quote or comment is an error at its beginning."""
    try:
        return _Statements().tokenize(text)
    except TokenError as error:
        raise tokenize_error(text, error, begins) from None


def tokenize_error(text: str, error: TokenError, begins: StartPosition | None = None, strings: str = "'") -> UsageError:
    """Return the error for a text that sqlglot cannot tokenize; `strings` are the quotes of strings, not of names."""
    missing = _MISSING.search(str(error.__cause__ or error))
    if missing is not None:
        place, quote = min(int(missing[2]), len(text)), missing[1]
        what, hint = "quoted string" if quote in strings else "quoted identifier", f"Add the closing {quote}."
    else:
        place = max(text.rfind("/*"), 0)
        what, hint = "/* comment", "Close the comment with */, and check for unbalanced quotes."
    return error_at(text, place, f'unterminated {what} at or near "{shown(text, place, len(text))}"', hint, begins)


def leading_words(text: str, most: int = 3) -> tuple[str, ...]:
    """Return the first words of a statement, in upper case."""
    words: list[str] = []
    at = after_blanks(text, 0)
    while len(words) < most and (found := _WORD.match(text, at)):
        words.append(found[0].upper())
        at = after_blanks(text, found.end())
    return tuple(words)


def after_blanks(text: str, at: int) -> int:
    """Return the offset of the first character after white space and comments."""
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank else at
        if not text.startswith("/*", at):
            return at
        at = _after_comment(text, at)


def _after_comment(text: str, at: int) -> int:
    """Return the end of a comment, which may contain others; an unterminated comment extends to the end of the text."""
    depth = 0
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
