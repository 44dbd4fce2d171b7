"""How the value of an option is written in SQL: each `Syntax` reads it from a cursor, and writes it back.

::

    tuple[str, ...]                              a field's type says how it is written: ('a', 'b')
    Annotated[tuple[str, ...], Listed(Name())]   or a `Syntax` among its metadata does: (a, b)

What was written is read as the same value. `option_syntax` finds the syntax of each field of a model, and reads and
writes whole models with it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic import SecretStr

from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.secret import is_reference
from penstock.sources.cursor import Cursor
from penstock.units import duration_text, parse_duration, parse_size, size_text

__all__ = [
    "Choice",
    "Duration",
    "Flag",
    "Listed",
    "Mapped",
    "Number",
    "Secret",
    "Size",
    "Span",
    "Syntax",
    "Text",
    "written_text",
]

_INTEGER = re.compile(r"-?[0-9]{1,1000}")


class Syntax(ABC):
    """How one kind of value is written."""

    @property
    @abstractmethod
    def form(self) -> str:
        """Return the form as the docs and hints show it."""

    @abstractmethod
    def read(self, cursor: Cursor) -> Any:
        """Take a value; what is none is an error of the cursor's."""

    @abstractmethod
    def write(self, value: Any) -> str:
        """Write a value so that `read` gives the same."""


@dataclass(frozen=True)
class Text(Syntax):
    """``'text'``, a quote in it doubled."""

    form = "'text'"

    def read(self, cursor: Cursor) -> str:
        """Take the text."""
        return cursor.text()

    def write(self, value: str) -> str:
        """Put it in quotes."""
        return written_text(value)


@dataclass(frozen=True)
class Secret(Text):
    """A reference to a secret. A secret in clear comes back as a `SecretStr`, for the statement to refuse."""

    form = "'env:NAME' or 'file:PATH'"

    def read(self, cursor: Cursor) -> Any:
        """Take the reference, or the secret."""
        given = cursor.text()
        return given if is_reference(given) else SecretStr(given)


@dataclass(frozen=True)
class Number(Syntax):
    """``1`` or ``-1.5``."""

    whole: bool = False

    @property
    def form(self) -> str:
        """Say which numbers."""
        return "whole number" if self.whole else "number"

    def read(self, cursor: Cursor) -> int | float:
        """Take the number; one that cannot be held exactly, or at all, is refused."""
        place = cursor.place()
        text = cursor.number()
        if self.whole:
            if not _INTEGER.fullmatch(text):
                message = "this is not a whole number"
                raise cursor.wrong(message, "Write digits alone, a thousand at most.", place)
            return int(text)
        found = float(text)
        if not math.isfinite(found):
            message = "this number is too large"
            raise cursor.wrong(message, "Write a smaller one.", place)
        return found

    def write(self, value: float) -> str:
        """Write digits, and no exponent."""
        return str(value) if isinstance(value, int) else format(Decimal(repr(value)), "f")


@dataclass(frozen=True)
class Flag(Syntax):
    """``true``, ``false``, ``on`` or ``off``; the name of the option alone means true."""

    form = "true or false"

    def read(self, cursor: Cursor) -> bool:
        """Take one of the four words."""
        if cursor.takes("TRUE") or cursor.takes("ON"):
            return True
        if cursor.takes("FALSE") or cursor.takes("OFF"):
            return False
        message = "this is neither true nor false"
        raise cursor.wrong(message, "Write true, false, on or off.")

    def write(self, value: bool) -> str:
        """Write true or false."""
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice(Syntax):
    """One of a few texts, in quotes or as a bare word."""

    values: tuple[str, ...]

    @property
    def form(self) -> str:
        """List them."""
        return " or ".join(map(written_text, self.values))

    def read(self, cursor: Cursor) -> str:
        """Take the text or word; case does not matter."""
        place = cursor.place()
        cursor.offers(*map(written_text, self.values))
        if not cursor.is_text() and not cursor.words():
            raise cursor.expected(self.form)
        given = cursor.text() if cursor.is_text() else cursor.part()
        for value in self.values:
            if value.casefold() == given.casefold():
                return value
        near = nearest(given, self.values)
        message = f"{given!r} is not among the choices"
        raise cursor.wrong(message, near or f"Choose {self.form}.", place)

    def write(self, value: str) -> str:
        """Put it in quotes."""
        return written_text(str(value))


@dataclass(frozen=True)
class Span(Syntax):
    """``'1 hour 30 minutes'``, kept as the text that it is."""

    form = "'1 day'"

    def read(self, cursor: Cursor) -> Any:
        """Take the text, and hold it to be a span of time."""
        place = cursor.place()
        text = cursor.text()
        try:
            parse_duration(text)
        except UsageError as error:
            raise cursor.wrong(error.message, error.hint, place) from None
        return text

    def write(self, value: Any) -> str:
        """Put it in quotes."""
        return written_text(value)


@dataclass(frozen=True)
class Duration(Span):
    """``'1 hour 30 minutes'``, kept as a `timedelta`."""

    def read(self, cursor: Cursor) -> timedelta:
        """Take the span of time."""
        return parse_duration(super().read(cursor))

    def write(self, value: timedelta) -> str:
        """Write it in its units."""
        return written_text(duration_text(value))


@dataclass(frozen=True)
class Size(Syntax):
    """``'16 MB'``, kept as a number of bytes."""

    form = "'16 MB'"

    def read(self, cursor: Cursor) -> int:
        """Take the amount."""
        place = cursor.place()
        text = cursor.text()
        try:
            return parse_size(text)
        except UsageError as error:
            raise cursor.wrong(error.message, error.hint, place) from None

    def write(self, value: int) -> str:
        """Write it in its largest unit."""
        return written_text(size_text(value))


@dataclass(frozen=True)
class Listed(Syntax):
    """``(a, b)``: a list of values of one kind."""

    item: Syntax

    @property
    def form(self) -> str:
        """Show two of them."""
        return f"({self.item.form}, …)"

    def read(self, cursor: Cursor) -> tuple[Any, ...]:
        """Take the list; it may be empty."""
        return tuple(_in_parentheses(cursor, self.item.read))

    def write(self, value: Sequence[Any]) -> str:
        """Write it in parentheses."""
        return f"({', '.join(map(self.item.write, value))})"


@dataclass(frozen=True)
class Mapped(Syntax):
    """``(a = 1, b = 2)``: values by keys."""

    key: Syntax
    value: Syntax

    @property
    def form(self) -> str:
        """Show one pair."""
        return f"({self.key.form} = {self.value.form}, …)"

    def read(self, cursor: Cursor) -> dict[Any, Any]:
        """Take the pairs; a key that comes again is an error."""
        found: dict[Any, Any] = {}

        def pair(cursor: Cursor) -> None:
            place = cursor.place()
            key = self.key.read(cursor)
            if key in found:
                message = "this key was given before"
                raise cursor.wrong(message, "Give it once.", place)
            cursor.expects("=")
            found[key] = self.value.read(cursor)

        _in_parentheses(cursor, pair)
        return found

    def write(self, value: Mapping[Any, Any]) -> str:
        """Write the pairs in parentheses."""
        return f"({', '.join(f'{self.key.write(k)} = {self.value.write(v)}' for k, v in value.items())})"


def written_text(text: str) -> str:
    """Put a text in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def _in_parentheses(cursor: Cursor, read: Callable[[Cursor], Any]) -> list[Any]:
    """Take what stands in parentheses, between commas."""
    cursor.expects("(")
    found: list[Any] = []
    if cursor.takes(")"):
        return found
    while True:
        found.append(read(cursor))
        if cursor.takes(")"):
            return found
        if not cursor.takes(","):
            what = ", or )"
            raise cursor.expected(what)
