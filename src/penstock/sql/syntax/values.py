"""The SQL notation of option values: each `Syntax` reads a value from a cursor, and writes it back.

::

    tuple[str, ...]                              derived from the field's type: ('a', 'b')
    Annotated[tuple[str, ...], Listed(Name())]   or given by a `Syntax` in the field's metadata: (a, b)

`read` and `write` are inverse: a written value is read as the same value. `penstock.sql.syntax.options` determines the
syntax of each field of a model, and reads and writes whole models.

The tokens of a statement are read through the interface `Cursor`, which `penstock.sql.cursor` implements.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Protocol

from pydantic import SecretStr

from penstock.errors import UsageError
from penstock.name_suggestions import nearest
from penstock.secret import is_reference
from penstock.units import duration_text, parse_duration, parse_size, size_text

__all__ = [
    "Choice",
    "Cursor",
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
    "alternatives",
    "written_text",
]

_INTEGER = re.compile(r"-?[0-9]{1,1000}")


class Syntax(ABC):
    """The notation of one kind of value."""

    @property
    @abstractmethod
    def form(self) -> str:
        """Return the notation as the documentation and hints show it."""

    @abstractmethod
    def read(self, cursor: Cursor) -> Any:
        """Consume a value; raise an error of the cursor if it is invalid."""

    @abstractmethod
    def write(self, value: Any) -> str:
        """Write a value so that `read` returns the same."""


@dataclass(frozen=True)
class Text(Syntax):
    """``'string'``, with quotes inside it doubled."""

    form = "'string'"

    def read(self, cursor: Cursor) -> str:
        """Consume the string."""
        return cursor.text()

    def write(self, value: str) -> str:
        """Return the string in quotes."""
        return written_text(value)


@dataclass(frozen=True)
class Secret(Text):
    """A reference to a secret. `read` returns a literal secret as a `SecretStr`, which the statement may reject."""

    form = "{ 'env:NAME' | 'file:PATH' }"

    def read(self, cursor: Cursor) -> Any:
        """Consume the reference, or the literal secret."""
        given = cursor.text()
        return given if is_reference(given) else SecretStr(given)


@dataclass(frozen=True)
class Number(Syntax):
    """``1`` or ``-1.5``."""

    whole: bool = False

    @property
    def form(self) -> str:
        """Return the type of number."""
        return "integer" if self.whole else "number"

    def read(self, cursor: Cursor) -> int | float:
        """Consume the number; reject a fraction for an integer, and values out of range."""
        place = cursor.place()
        text = cursor.number()
        if self.whole:
            if not _INTEGER.fullmatch(text):
                raise cursor.invalid(text, "Use an integer of at most 1000 digits, without a fraction.", place)
            return int(text)
        found = float(text)
        if not math.isfinite(found):
            raise cursor.out_of_bounds(text, "Use a smaller number.", place)
        return found

    def write(self, value: float) -> str:
        """Write the number without an exponent."""
        return str(value) if isinstance(value, int) else format(Decimal(repr(value)), "f")


@dataclass(frozen=True)
class Flag(Syntax):
    """``true``, ``false``, ``on`` or ``off``; the option's name alone means true."""

    form = "{ true | false }"

    def read(self, cursor: Cursor) -> bool:
        """Consume one of the four keywords."""
        if cursor.accept("TRUE") or cursor.accept("ON"):
            return True
        if cursor.accept("FALSE") or cursor.accept("OFF"):
            return False
        place, hint = cursor.place(), "Use { true | false | on | off }."
        if cursor.words():
            raise cursor.invalid(cursor.part(), hint, place)
        raise cursor.expected(self.form, hint)

    def write(self, value: bool) -> str:
        """Return ``true`` or ``false``."""
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice(Syntax):
    """One of a fixed set of values, as a string or a bare word."""

    values: tuple[str, ...]
    rejected: tuple[str, ...] = ()
    """Values that are read as well, because the model rejects them with a reason."""

    @property
    def form(self) -> str:
        """Return the values."""
        return alternatives(map(written_text, self.values))

    def read(self, cursor: Cursor) -> str:
        """Consume the string or word, in any case."""
        place = cursor.place()
        cursor.offer(*map(written_text, self.values))
        if not cursor.is_text() and not cursor.words():
            raise cursor.expected(self.form)
        given = cursor.text() if cursor.is_text() else cursor.part()
        for value in (*self.values, *self.rejected):
            if value.casefold() == given.casefold():
                return value
        raise cursor.invalid(given, nearest(given, self.values, "'") or f"Use {self.form}.", place)

    def write(self, value: str) -> str:
        """Return the value in quotes."""
        return written_text(str(value))


@dataclass(frozen=True)
class Span(Syntax):
    """``'1 hour 30 minutes'``, kept as text."""

    form = "'1 day'"

    def read(self, cursor: Cursor) -> Any:
        """Consume the string; raise an error unless it is a duration."""
        place = cursor.place()
        text = cursor.text()
        try:
            parse_duration(text)
        except UsageError as error:
            raise cursor.invalid(text, error.hint, place) from None
        return text

    def write(self, value: Any) -> str:
        """Return the duration in quotes."""
        return written_text(value)


@dataclass(frozen=True)
class Duration(Span):
    """``'1 hour 30 minutes'``, kept as a `timedelta`."""

    def read(self, cursor: Cursor) -> timedelta:
        """Consume the duration."""
        return parse_duration(super().read(cursor))

    def write(self, value: timedelta) -> str:
        """Write the duration with its units."""
        return written_text(duration_text(value))


@dataclass(frozen=True)
class Size(Syntax):
    """``'16 MB'``, kept as a number of bytes."""

    form = "'16 MB'"

    def read(self, cursor: Cursor) -> int:
        """Consume the size."""
        place = cursor.place()
        text = cursor.text()
        try:
            return parse_size(text)
        except UsageError as error:
            raise cursor.invalid(text, error.hint, place) from None

    def write(self, value: int) -> str:
        """Write the size in its largest unit."""
        return written_text(size_text(value))


@dataclass(frozen=True)
class Listed(Syntax):
    """``(a, b)``: a list of values of one syntax."""

    item: Syntax

    @property
    def form(self) -> str:
        """Return the notation of the list."""
        return f"({self.item.form}, …)"

    def read(self, cursor: Cursor) -> tuple[Any, ...]:
        """Consume the list, which may be empty."""
        return tuple(_in_parentheses(cursor, self.item.read))

    def write(self, value: Sequence[Any]) -> str:
        """Write the list in parentheses."""
        return f"({', '.join(map(self.item.write, value))})"


@dataclass(frozen=True)
class Mapped(Syntax):
    """``(a = 1, b = 2)``: values by key."""

    key: Syntax
    value: Syntax

    @property
    def form(self) -> str:
        """Return the notation of the mapping."""
        return f"({self.key.form} = {self.value.form}, …)"

    def read(self, cursor: Cursor) -> dict[Any, Any]:
        """Consume the pairs; raise an error for a duplicate key."""
        found: dict[Any, Any] = {}

        def pair(cursor: Cursor) -> None:
            place = cursor.place()
            key = self.key.read(cursor)
            if key in found:
                message = f"key {self.key.write(key)} specified more than once"
                raise cursor.error(message, "Specify each key once.", place)
            cursor.expect("=")
            found[key] = self.value.read(cursor)

        _in_parentheses(cursor, pair)
        return found

    def write(self, value: Mapping[Any, Any]) -> str:
        """Write the pairs in parentheses."""
        return f"({', '.join(f'{self.key.write(k)} = {self.value.write(v)}' for k, v in value.items())})"


def alternatives(choices: Iterable[str]) -> str:
    """Return choices in the notation of syntax summaries: ``{ a | b }``, or a single one as it is."""
    each = list(choices)
    return each[0] if len(each) == 1 else f"{{ {' | '.join(each)} }}"


def written_text(text: str) -> str:
    """Return a text in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def _in_parentheses(cursor: Cursor, read: Callable[[Cursor], Any]) -> list[Any]:
    """Consume a comma-separated list in parentheses."""
    cursor.expect("(")
    found: list[Any] = []
    if cursor.accept(")"):
        return found
    while True:
        found.append(read(cursor))
        if cursor.accept(")"):
            return found
        if not cursor.accept(","):
            what = '"," or ")"'
            raise cursor.expected(what)


# -- cursor ------------------------------------------------------------------------------------------------------------


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
