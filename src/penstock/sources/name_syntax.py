"""How names are written in SQL: bare where they can be, else in double quotes (backticks are read, too).

A dotted name is kept as one text, as the options of a source have it: ``schema.table``, ``"a.b".c AS d``; a part with
a dot, a space or a quote in it is in double quotes there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.sources.cursor import Cursor
from penstock.sources.syntax import Syntax

__all__ = ["RESERVED", "DottedName", "Inclusion", "Inclusions", "Name", "dotted_text", "written_name"]

RESERVED = frozenset({"AS", "FOR", "FROM", "WHERE", "WITH"})
"""Words that are names only in quotes, or behind a dot."""
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r'[^\s".]+')
_PART = r'(?:"(?:[^"]|"")+"|[^\s".]+)'
_DOTTED = re.compile(rf"\s*({_PART}(?:\.{_PART})*)(?:\s+AS\s+({_PART}))?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Name(Syntax):
    """One name."""

    of: str = "name"

    @property
    def form(self) -> str:
        """Say what it names."""
        return self.of

    def read(self, cursor: Cursor) -> str:
        """Take the name."""
        return cursor.name(self.of)

    def write(self, value: str) -> str:
        """Quote it where it needs that."""
        return written_name(value)


@dataclass(frozen=True)
class DottedName(Syntax):
    """``schema.table`` or ``schema.table.column``, and ``AS name`` behind it where that is allowed."""

    of: str
    """The form, like ``schema.table``: it says how many parts there are."""
    aliased: bool = False

    @property
    def form(self) -> str:
        """Show the parts."""
        return f"{self.of} [AS name]" if self.aliased else self.of

    def read(self, cursor: Cursor) -> str:
        """Take the name; return it as one text."""
        place = cursor.place()
        parts = [cursor.name(self.of)]
        while cursor.takes("."):
            parts.append(cursor.part())
        if len(parts) != self.of.count(".") + 1:
            message = f"this is not a name of the form {self.of}"
            raise cursor.wrong(message, f"Write {self.form}.", place)
        alias = cursor.name("name") if self.aliased and cursor.takes("AS") else None
        return dotted_text(parts, alias)

    def write(self, value: str) -> str:
        """Write the parts, each quoted where it needs that."""
        found = _DOTTED.fullmatch(value)
        assert found is not None, "options hold their names to this form"
        name = ".".join(written_name(_unquoted(part)) for part in re.findall(_PART, found[1]))
        return f"{name} AS {written_name(_unquoted(found[2]))}" if found[2] else name


@dataclass(frozen=True)
class Inclusion:
    """One thing beside the row that becomes a column, and the name that it shall have."""

    what: str
    name: str | None = None


@dataclass(frozen=True)
class Inclusions(Syntax):
    """``KEY, PARTITION AS p, OFFSET``: some of a few words, each with a name or without; no parentheses."""

    whats: tuple[str, ...]

    @property
    def form(self) -> str:
        """List the words."""
        return " | ".join(f"{what.upper()} [AS name]" for what in self.whats) + ", …"

    def read(self, cursor: Cursor) -> tuple[Inclusion, ...]:
        """Take the words and names, each once."""
        found: list[Inclusion] = []
        while True:
            place = cursor.place()
            what = next((what for what in self.whats if cursor.takes(what.upper())), None)
            if what is None or what in (each.what for each in found):
                problem = (
                    "this is nothing that can be included" if what is None else f"{what.upper()} was included before"
                )
                raise cursor.wrong(problem, f"Choose among {', '.join(self.whats).upper()}, each once.", place)
            found.append(Inclusion(what, cursor.name("name") if cursor.takes("AS") else None))
            if not cursor.takes(","):
                return tuple(found)

    def write(self, value: Sequence[Inclusion]) -> str:
        """Write them between commas."""
        named = (f" AS {written_name(each.name)}" if each.name else "" for each in value)
        return ", ".join(f"{each.what.upper()}{name}" for each, name in zip(value, named, strict=True))


def dotted_text(parts: Sequence[str], alias: str | None = None) -> str:
    """Put a dotted name into one text, as the options of a source have it."""
    name = ".".join(map(_text, parts))
    return f"{name} AS {_text(alias)}" if alias else name


def written_name(name: str) -> str:
    """Write a name for SQL: bare, or in double quotes."""
    bare = _BARE.fullmatch(name) and name.upper() not in RESERVED
    return name if bare else '"' + name.replace('"', '""') + '"'


def _text(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
