"""The interface of a load: tables, and transactions that depend only on a seed and their number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.sources.polling_steps import Changes
from penstock.sources.row_tables import RowTable

__all__ = ["Scenario"]


class Scenario(ABC):
    """A generated load. Transaction 1 inserts the initial rows. Transactions are reproducible."""

    @abstractmethod
    def tables(self) -> Sequence[RowTable]:
        """Return its tables."""

    @abstractmethod
    def go_to(self, done: int) -> None:
        """Set the position to the end of transaction `done`."""

    @abstractmethod
    def next(self, count: int) -> Sequence[Changes]:
        """Return the changes of the next `count` transactions, and advance the position."""
