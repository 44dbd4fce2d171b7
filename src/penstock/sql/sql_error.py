"""What is wrong with a statement, and where: line, column, and the line itself with a caret under the place."""

from __future__ import annotations

from penstock.errors import UsageError

__all__ = ["SqlError"]


class SqlError(UsageError):
    """A statement that cannot be read. `excerpt` is two lines: the statement's, without secrets, and the caret."""

    def __init__(self, what: str, remedy: str, line: int, column: int, excerpt: str) -> None:
        super().__init__(f"line {line}, column {column}: {what}", remedy)
        self.args = (what, remedy, line, column, excerpt)
        self.what = what
        self.line = line
        self.column = column
        self.excerpt = excerpt

    def __str__(self) -> str:
        """Message, line and caret, remedy: the way a terminal shows them."""
        return "\n".join(part for part in (self.message, self.excerpt, self.remedy) if part)
