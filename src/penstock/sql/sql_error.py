"""What is wrong with a statement, and where: line, column, and the line itself with a caret under the place."""

from __future__ import annotations

from penstock.errors import UsageError

__all__ = ["SqlError"]


class SqlError(UsageError):
    """A statement that cannot be read. `excerpt` is two lines: the statement's, without secrets, and the caret.

    The message holds them, and the place, as well.
    """

    def __init__(self, message: str, remedy: str = "", line: int = 1, column: int = 1, excerpt: str = "") -> None:
        super().__init__(message, remedy)
        self.args = (message, remedy, line, column, excerpt)
        self.line = line
        self.column = column
        self.excerpt = excerpt
