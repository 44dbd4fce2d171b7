"""A cursor over the tokens of a statement: what the grammar reads from.

It also notes what could have stood where the text ends. That is all that completion needs: the grammar is asked to
read what is there so far.
"""

from __future__ import annotations

import re

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import UsageError
from penstock.sources.name_syntax import RESERVED
from penstock.sql.excerpt import Beginning, error_at
from penstock.sql.masking import MASK, secret_spans
from penstock.sql.tokens import tokenized

__all__ = ["StatementCursor"]

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
            remedy = f'{bare.upper()} is a word of the statement; to use it as a name, write "{bare}".'
            raise self.wrong(message, remedy)
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
        """Set how what is being read is written, the remedy for what does not fit; return what was set before."""
        before, self._usage = self._usage, usage
        return before

    def expected(self, what: str) -> UsageError:
        """Return the error for something else at the next token's place."""
        return self.wrong(f"expected {what}, found {self._found()}", f"Write: {self._usage}")

    def wrong(self, message: str, remedy: str, place: int | None = None) -> UsageError:
        """Return the error at a place, the next token's unless another one is given."""
        return error_at(self._text, self.place() if place is None else place, message, remedy, self._begins)

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
