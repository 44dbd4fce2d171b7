"""A cursor over the tokens of a statement: what the grammar reads from.

It also notes what could have stood where the text ends. That is all that completion needs: the grammar is asked to
read what is there so far.

The tokens of our statements, by sqlglot: words, numbers, 'texts', and names in "double quotes" or `backticks`.

There are no keywords here: a word is what the grammar takes it for. A quote within a text or a name is doubled, and a
backslash is a character like any other.
"""

from __future__ import annotations

import re
from typing import ClassVar

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from penstock.errors import UsageError
from penstock.sources.name_syntax import RESERVED
from penstock.sql.errors import MASK, Beginning, error_at, secret_spans

__all__ = ["StatementCursor", "after_blanks", "leading_words", "tokenized", "unreadable"]

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[^\W\d]\w*")
_SAME = {"SOURCE": "SOURCES", "SINK": "SINKS"}
_LONGEST = 40
"""Of what was found instead, no more than this is repeated."""


class StatementCursor:
    """Reads one statement; the semicolon that ends it, and nothing else, may be behind it."""

    def __init__(self, text: str, begins: Beginning | None = None) -> None:
        self._text = text
        self._begins = begins
        self._tokens = tokenized(text, begins)
        while self._tokens and self._tokens[-1].token_type is TokenType.SEMICOLON:
            self._tokens.pop()
        self._at = 0
        self._usage = ""
        self._tried: dict[int, list[str]] = {}
        self._offered: list[str] = []
        self._named: list[str] = []

    # -- what `penstock.sources.syntax.Cursor` asks for ------------------------------------------------------------

    def place(self) -> int:
        """Return where the next token begins; at the end, where the last one ends."""
        if self._at < len(self._tokens):
            return self._tokens[self._at].start
        return self._tokens[-1].end + 1 if self._tokens else 0

    def takes(self, *phrase: str) -> bool:
        """Take these words, or this symbol, if they come next."""
        self.offers(" ".join(phrase))
        self._tried.setdefault(self._at, []).append(" ".join(phrase))
        ahead = self._tokens[self._at : self._at + len(phrase)]
        if len(ahead) < len(phrase) or not all(map(_is_word, ahead, phrase)):
            return False
        self._at += len(phrase)
        return True

    def expects(self, *phrase: str) -> None:
        """Take these words, or this symbol; anything else is an error."""
        if not self.takes(*phrase):
            raise self.expected(" ".join(phrase))

    def words(self) -> tuple[str, ...]:
        """Return the bare words that come next, in upper case."""
        found = []
        for token in self._tokens[self._at :]:
            if token.token_type is not TokenType.VAR:
                break
            found.append(token.text.upper())
        return tuple(found)

    def is_text(self) -> bool:
        """Say whether a text in single quotes comes next."""
        return self._is(TokenType.STRING)

    def text(self) -> str:
        """Take a text in single quotes."""
        if not self.is_text():
            what = "a text in single quotes"
            raise self.expected(what)
        return self._take().text

    def number(self) -> str:
        """Take a number, as it is written."""
        place, sign = self._at, "-" if self.takes("-") else ""
        if not self._is(TokenType.NUMBER) or not _NUMBER.fullmatch(self._tokens[self._at].text):
            self._at = place
            what = "a number"
            raise self.expected(what)
        return sign + self._take().text

    def name(self, of: str) -> str:
        """Take one name, bare or in quotes."""
        if self._at == len(self._tokens):
            self._named.append(of)
        bare = self._is(TokenType.VAR) and self._tokens[self._at].text
        if bare and bare.upper() in RESERVED:
            message = f"expected {_called(of)}, found {bare.upper()}"
            hint = f'{bare.upper()} is a word of the statement; to use it as a name, write "{bare}".'
            raise self.wrong(message, hint)
        return self.part(_called(of))

    def part(self, what: str = "a name") -> str:
        """Take the part of a name that stands behind a dot."""
        if self._is(TokenType.IDENTIFIER) and self._tokens[self._at].text:
            return self._take().text
        if self._is(TokenType.VAR) and _WORD.fullmatch(self._tokens[self._at].text):
            return self._take().text
        raise self.expected(what)

    def offers(self, *phrases: str) -> None:
        """Note what could stand at the end of the text, or go on there."""
        left = self._tokens[self._at :]
        for phrase in phrases:
            words = phrase.split()
            if len(left) < len(words) and all(map(_is_word, left, words)):
                self._offered.append(" ".join(words[len(left) :]))

    def tried(self) -> list[str]:
        """Return the phrases that `takes` was asked for at the next token's place."""
        return list(dict.fromkeys(self._tried.get(self._at, [])))

    def usage(self, usage: str) -> str:
        """Set how what is being read is written, the hint for what does not fit; return what was set before."""
        before, self._usage = self._usage, usage
        return before

    def expected(self, what: str) -> UsageError:
        """Return the error for something else at the next token's place."""
        return self.wrong(f"expected {what}, found {self._found()}", f"Write: {self._usage}")

    def wrong(self, message: str, hint: str, place: int | None = None) -> UsageError:
        """Return the error at a place, the next token's unless another one is given."""
        return error_at(self._text, self.place() if place is None else place, message, hint, self._begins)

    # -- what the grammar asks for besides -------------------------------------------------------------------------

    def is_at_end(self) -> bool:
        """Say whether everything is taken."""
        return self._at == len(self._tokens)

    def ends(self) -> None:
        """Refuse anything that is still there."""
        if not self.is_at_end():
            message = f"the statement should end here, but {self._found()} follows"
            raise self.wrong(message, f"Write: {self._usage}")

    def rest(self) -> str:
        """Take all that is left, as it is written."""
        start = self.place()
        self._at = len(self._tokens)
        return self._text[start : self.place()]

    def offered(self) -> list[str]:
        """Return what could stand at the end of the text."""
        return list(dict.fromkeys(self._offered))

    def named(self) -> list[str]:
        """Return the kinds of things that could be named at the end of the text."""
        return list(dict.fromkeys(self._named))

    def _is(self, kind: TokenType) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].token_type is kind

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _found(self) -> str:
        """Name the next token, for people; a secret is not repeated."""
        if self._at == len(self._tokens):
            return "the end"
        token = self._tokens[self._at]
        if any(start <= token.end and token.start < end for start, end in secret_spans(self._text)):
            return MASK
        written = "".join(c if c.isprintable() else " " for c in self._text[token.start : token.end + 1])
        return written if len(written) <= _LONGEST else f"{written[:_LONGEST]}…"


def _called(of: str) -> str:
    """Name a kind of thing: ``schema.table`` is a form, ``source`` is a thing."""
    return "a name" if of == "name" else f"the name of a {of}" if of.isalpha() else of


def _is_word(token: Token, word: str) -> bool:
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    found, wanted = token.text.upper(), word.upper()
    return not quoted and _SAME.get(found, found) == _SAME.get(wanted, wanted)


_MISSING = re.compile(r"Missing (.) from \d+:(\d+)")
_BLANK = re.compile(r"(?:\s+|--[^\r\n]*)*")
_COMMENT = re.compile(r"/\*|\*/")


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
    what, hint = "this is not SQL: a comment here has no end", "End it with */; check quotes, too."
    return error_at(text, place, what, hint, begins)


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
