"""What a load is: tables, and transactions that follow from a seed and their number alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.sources.polling_steps import Changes
from penstock.sources.row_tables import RowTable

__all__ = ["Scenario"]


class Scenario(ABC):
    """A load. Transaction 1 brings what is there from the beginning; all are the same whenever they are made."""

    @abstractmethod
    def tables(self) -> Sequence[RowTable]:
        """Return its tables."""

    @abstractmethod
    def go_to(self, done: int) -> None:
        """Be where so many transactions are done."""

    @abstractmethod
    def next(self, count: int) -> Sequence[Changes]:
        """Make the next transactions, and be behind them."""
