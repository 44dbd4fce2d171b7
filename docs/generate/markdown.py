"""Tables and code spans in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["code", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`"
