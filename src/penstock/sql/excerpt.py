"""A place in a statement, for people: line, column, and the line with a caret under the place, without secrets."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sql.masking import MASK, secret_spans
from penstock.sql.sql_error import SqlError

__all__ = ["Beginning", "error_at"]

_WIDTH = 100
"""Longer lines are cut around the place."""


@dataclass(frozen=True)
class Beginning:
    """Where a statement begins in the file that it is of."""

    line: int = 1
    column: int = 1


def error_at(text: str, place: int, what: str, remedy: str, begins: Beginning | None = None) -> SqlError:
    """Return the error at a place of a statement."""
    begins = begins or Beginning()
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    offset = begins.column - 1 if line == 1 else 0
    line, column, excerpt = begins.line + line - 1, column + offset, _excerpt(text, place)
    return SqlError(f"line {line}, column {column}: {what}\n{excerpt}", remedy, line, column, excerpt)


def _excerpt(text: str, place: int) -> str:
    begin = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    line, caret = _masked(text, begin, end if end >= 0 else len(text), place)
    line = "".join(char if char.isprintable() else " " for char in line)
    if len(line) > _WIDTH:
        line, caret = _cut(line, caret)
    line = line.rstrip()
    indent = len(line) - len(line.lstrip()) if line.strip() else 0
    indent = min(indent, caret)
    return f"  {line[indent:]}\n  {' ' * (caret - indent)}^"


def _masked(text: str, begin: int, end: int, place: int) -> tuple[str, int]:
    """Return a line with its secrets masked, and where the place is in it then."""
    pieces, at, caret = [], begin, place - begin
    for first, last in secret_spans(text):
        if last <= begin or first >= end:
            continue
        first, last = max(first, begin), min(last, end)
        pieces += [text[at:first], MASK]
        if place >= last:
            caret += len(MASK) - (last - first)
        elif place > first:
            caret -= place - first
        at = last
    return "".join([*pieces, text[at:end]]), caret


def _cut(line: str, caret: int) -> tuple[str, int]:
    start = max(0, min(caret - _WIDTH // 2, len(line) - _WIDTH))
    shown = line[start : start + _WIDTH]
    before, after = "…" if start else "", "…" if start + _WIDTH < len(line) else ""
    return f"{before}{shown}{after}", caret - start + len(before)
