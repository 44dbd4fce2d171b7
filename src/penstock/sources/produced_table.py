"""A table that an instance of a source produces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from pydantic import BaseModel, ConfigDict

from penstock.model import TableName, TableSchema

__all__ = ["ProducedTable"]


class ProducedTable(BaseModel, ABC):
    """A table that an instance produces. A kind may add fields in a subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: TableName
    generation: int = 0
    """The number of times that it was resnapshotted: its history in the log begins with the last one."""
    comment: str | None = None
    alias: str | None = None
    """The name of the live table; None for the upstream name."""
    estimated_rows: int = 0
    """The number of rows upstream when it was described; 0 if there is no estimate."""

    @abstractmethod
    def table_schema(self) -> TableSchema:
        """Return its columns and its key at the beginning of the capture."""

    def absent_columns(self) -> tuple[str, ...]:
        """Return the columns that no longer exist upstream."""
        return ()

    def comments(self) -> dict[str, str]:
        """Return the comments on its columns."""
        return {}

    def with_logged_columns(self, schema: TableSchema) -> Self:
        """Return this table with the columns that were added since, according to its schema in the log."""
        return self

    def remembers(self) -> bool:
        """Return whether its commits contain state besides rows, which is needed to apply the next changes."""
        return False

    def refuses(self) -> bool:
        """Return whether it may reject a part of its log: by quarantining that part, or by stopping there.

        Quarantined messages can be read as a table. A stopped table can be retried with other options.
        """
        return False
