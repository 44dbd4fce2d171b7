"""The notation of names in SQL: bare if possible, otherwise in double quotes (backticks are accepted when reading).

Source options store a dotted name as one string: ``schema.table``, ``"a.b".c AS d``. Parts that contain a dot, a space
or a quote are in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.sql.syntax.values import Cursor, Syntax, alternatives

__all__ = ["RESERVED", "ColumnName", "DottedName", "Inclusion", "Inclusions", "Name", "dotted_text", "written_name"]

RESERVED = frozenset({"AS", "FOR", "FROM", "WHERE", "WITH"})
"""Words that are names only if quoted, or after a dot."""
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
        """Return the kind of object that it names."""
        return self.of

    def read(self, cursor: Cursor) -> str:
        """Consume the name."""
        return cursor.name(self.of)

    def write(self, value: str) -> str:
        """Return the name, quoted if necessary."""
        return written_name(value)


@dataclass(frozen=True)
class DottedName(Syntax):
    """``schema.table`` or ``schema.table.column``, optionally followed by ``AS name``."""

    of: str
    """The form, like ``schema.table``, which determines the number of parts."""
    aliased: bool = False

    @property
    def form(self) -> str:
        """Return the notation of the name."""
        return f"{self.of} [AS name]" if self.aliased else self.of

    def read(self, cursor: Cursor) -> str:
        """Consume the name; return it as one string."""
        place = cursor.place()
        parts = [cursor.name(self.of)]
        while cursor.accept("."):
            parts.append(cursor.part())
        if len(parts) != self.of.count(".") + 1:
            raise cursor.expected(self.of, f"Syntax: {self.form}", place)
        alias = cursor.name("name") if self.aliased and cursor.accept("AS") else None
        return dotted_text(parts, alias)

    def write(self, value: str) -> str:
        """Write the parts, each quoted if necessary."""
        found = _DOTTED.fullmatch(value)
        assert found is not None, "options validate their names"
        name = ".".join(written_name(_unquoted(part)) for part in re.findall(_PART, found[1]))
        return f"{name} AS {written_name(_unquoted(found[2]))}" if found[2] else name


@dataclass(frozen=True)
class ColumnName(Syntax):
    """``column``, ``table.column`` or ``schema.table.column``, as one string without quotes."""

    @property
    def form(self) -> str:
        """Return the notation of the name."""
        return "[table.]column"

    def read(self, cursor: Cursor) -> str:
        """Consume the name; return its parts, joined with dots."""
        parts = [cursor.name("column")]
        while cursor.accept("."):
            parts.append(cursor.part())
        return ".".join(parts)

    def write(self, value: str) -> str:
        """Return the name, quoted as a whole if necessary: which dots separate parts is not known."""
        return written_name(value)


@dataclass(frozen=True)
class Inclusion:
    """An item of message metadata that becomes a column, and the column's name."""

    what: str
    name: str | None = None


@dataclass(frozen=True)
class Inclusions(Syntax):
    """``KEY, PARTITION AS p, OFFSET``: a list of keywords, each with an optional name, without parentheses."""

    whats: tuple[str, ...]

    @property
    def form(self) -> str:
        """Return the notation of the list."""
        return f"{self._keywords()} [AS name], …"

    def read(self, cursor: Cursor) -> tuple[Inclusion, ...]:
        """Consume the keywords and names; raise an error for a duplicate."""
        found: list[Inclusion] = []
        while True:
            place = cursor.place()
            what = next((what for what in self.whats if cursor.accept(what.upper())), None)
            if what is None:
                raise cursor.expected(self._keywords())
            if what in (each.what for each in found):
                message = f"{what.upper()} specified more than once"
                raise cursor.error(message, "Specify it once.", place)
            found.append(Inclusion(what, cursor.name("name") if cursor.accept("AS") else None))
            if not cursor.accept(","):
                return tuple(found)

    def _keywords(self) -> str:
        return alternatives(what.upper() for what in self.whats)

    def write(self, value: Sequence[Inclusion]) -> str:
        """Write the list with commas."""
        named = (f" AS {written_name(each.name)}" if each.name else "" for each in value)
        return ", ".join(f"{each.what.upper()}{name}" for each, name in zip(value, named, strict=True))


def dotted_text(parts: Sequence[str], alias: str | None = None) -> str:
    """Return a dotted name as one string, in the notation of source options."""
    name = ".".join(map(_text, parts))
    return f"{name} AS {_text(alias)}" if alias else name


def written_name(name: str) -> str:
    """Return a name for SQL: bare, or in double quotes."""
    bare = _BARE.fullmatch(name) and name.upper() not in RESERVED
    return name if bare else '"' + name.replace('"', '""') + '"'


def _text(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
