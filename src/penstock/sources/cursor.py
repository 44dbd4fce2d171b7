"""The interface through which option syntax reads the tokens of a statement; `penstock.sql.cursor` implements it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.errors import UsageError

__all__ = ["Cursor"]


class Cursor(Protocol):
    """The tokens of a statement, from left to right. An unexpected token is an error at its offset."""

    def place(self) -> int:
        """Return the offset of the next token, for `error`."""

    def accept(self, *phrase: str) -> bool:
        """Consume these words, or this symbol, if they come next; return whether they did."""

    def expect(self, *phrase: str) -> None:
        """Consume these words, or this symbol; raise an error for anything else."""

    def words(self) -> tuple[str, ...]:
        """Return the bare words that come next, in upper case, without consuming them."""

    def is_text(self) -> bool:
        """Return whether a string in single quotes comes next."""

    def text(self) -> str:
        """Consume a string in single quotes."""

    def number(self) -> str:
        """Consume a number and return its text."""

    def name(self, of: str) -> str:
        """Consume one name, bare or quoted; `of` names the kind of object for error messages."""

    def part(self) -> str:
        """Consume the part of a name after a dot: any word, or a quoted name."""

    def offer(self, *phrases: str) -> None:
        """Record phrases that could come next, for completion."""

    def usage(self, usage: str) -> str:
        """Set the syntax summary that hints show; return the previous one."""

    def reading(self, what: str) -> str:
        """Set the option or clause whose value comes next, for error messages; return the previous one."""

    def tried(self) -> list[str]:
        """Return the phrases that `accept` tried at the next token."""

    def expected(self, what: str = "", hint: str = "", place: int | None = None) -> UsageError:
        """Return the syntax error at an offset, by default that of the next token; without a hint, show the usage."""

    def unmatched(self, phrases: Iterable[str], hint: str) -> UsageError:
        """Return the syntax error at the first of the next tokens that continues none of these phrases."""

    def invalid(self, value: str, hint: str, place: int) -> UsageError:
        """Return the error for an invalid value of the option or clause that is being read."""

    def out_of_bounds(self, value: str, hint: str, place: int) -> UsageError:
        """Return the error for a number that this option or clause does not accept."""

    def error(self, message: str, hint: str, place: int | None = None) -> UsageError:
        """Return an error at an offset, by default that of the next token."""
