"""What the syntax of options reads from: tokens of a statement. `penstock.sql` has the one that there is."""

from __future__ import annotations

from typing import Protocol

from penstock.errors import UsageError

__all__ = ["Cursor"]


class Cursor(Protocol):
    """The tokens of a statement, from left to right. What does not fit is an error at its place."""

    def place(self) -> int:
        """Return where the next token stands, for `wrong`."""

    def takes(self, *phrase: str) -> bool:
        """Take these words, or this symbol, if they come next; say whether they did."""

    def expects(self, *phrase: str) -> None:
        """Take these words, or this symbol; anything else is an error."""

    def words(self) -> tuple[str, ...]:
        """Return the bare words that come next, in upper case, without taking them."""

    def is_text(self) -> bool:
        """Say whether a text in single quotes comes next."""

    def text(self) -> str:
        """Take a text in single quotes."""

    def number(self) -> str:
        """Take a number, as it is written."""

    def name(self, of: str) -> str:
        """Take one name, bare or in quotes, of a thing of this kind."""

    def part(self) -> str:
        """Take the part of a name that stands behind a dot: any word, or one in quotes."""

    def offers(self, *phrases: str) -> None:
        """Note what could stand here, for completion and for the error if none of it does."""

    def usage(self, usage: str) -> str:
        """Set how what is being read is written, the hint for what does not fit; return what was set before."""

    def tried(self) -> list[str]:
        """Return the phrases that `takes` was asked for at the next token's place."""

    def expected(self, what: str) -> UsageError:
        """Return the error for something else at the next token's place."""

    def wrong(self, message: str, hint: str, place: int | None = None) -> UsageError:
        """Return the error at a place, the next token's unless another one is given."""
