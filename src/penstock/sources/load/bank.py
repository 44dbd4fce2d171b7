"""A bank: each transfer is one transaction, which inserts its row and updates the balances of both accounts.

All balances are 1000 at first, and their sum is the same at every position. A balance may be negative. To resume at a
position, the generator adds up all earlier transfers, about ten million per second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import Image, TableName
from penstock.sources.load.draws import Draws
from penstock.sources.load.scenario import Scenario
from penstock.sources.polling_steps import Changes, inserted
from penstock.sources.row_tables import RowTable

__all__ = ["OPENING", "Bank"]

OPENING = 1000
"""The initial balance of each account."""
_MOST = 100
_AT_ONCE = 1 << 20
_ACCOUNTS = pa.schema([("id", pa.int64()), ("balance", pa.int64())])
_TRANSFERS = pa.schema([("id", pa.int64()), ("payer", pa.int64()), ("payee", pa.int64()), ("amount", pa.int64())])
_Numbers = npt.NDArray[np.int64]


class Bank(Scenario):
    """Transfers between accounts."""

    def __init__(self, source: str, seed: int, accounts: int) -> None:
        self._accounts = RowTable.of(TableName(source, "accounts"), _ACCOUNTS, ("id",))
        self._transfers = RowTable.of(TableName(source, "transfers"), _TRANSFERS, ("id",))
        self._draws = Draws(seed)
        self._balances = np.full(accounts, OPENING, np.int64)
        self._done = 0

    def tables(self) -> Sequence[RowTable]:
        """Return accounts and transfers."""
        return self._accounts, self._transfers

    def go_to(self, done: int) -> None:
        """Set the position; compute the balances from all earlier transfers."""
        self._balances[:] = OPENING
        for first in range(1, done, _AT_ONCE):
            payer, payee, amount = self._drawn(np.arange(first, min(first + _AT_ONCE, done)))
            self._balances += self._moved(payee, amount) - self._moved(payer, amount)
        self._done = done

    def next(self, count: int) -> Sequence[Changes]:
        """Return the next transactions: the first one opens the accounts, each later one, N, is transfer N - 1."""
        opening = self._done == 0
        ids = np.arange(max(self._done, 1), self._done + count)
        self._done += count
        transfers = self._transfer(ids, first=int(opening)) if len(ids) else []
        return [*([self._open()] if opening else []), *transfers]

    def _open(self) -> Changes:
        ids = pa.array(np.arange(len(self._balances)))
        balances = pa.array(np.full(len(self._balances), OPENING, np.int64))
        return inserted(self._accounts.name, pa.RecordBatch.from_arrays([ids, balances], schema=_ACCOUNTS))

    def _transfer(self, ids: _Numbers, first: int) -> list[Changes]:
        payer, payee, amount = self._drawn(ids)
        of = np.arange(first, first + len(ids))
        rows = pa.RecordBatch.from_arrays([pa.array(each) for each in (ids, payer, payee, amount)], schema=_TRANSFERS)
        made = Changes(self._transfers.name, rows, Image.INSERTED, of)
        accounts = np.column_stack([payer, payee]).ravel()
        after = self._balances_after(accounts, np.column_stack([-amount, amount]).ravel())
        before = after - np.column_stack([-amount, amount]).ravel()
        pairs = [np.repeat(accounts, 2), np.column_stack([before, after]).ravel()]
        images = np.tile(np.array([Image.BEFORE, Image.UPDATED], np.int8), len(accounts))
        changed = pa.RecordBatch.from_arrays([pa.array(each) for each in pairs], schema=_ACCOUNTS)
        return [Changes(self._accounts.name, changed, images, np.repeat(of, 4)), made]

    def _drawn(self, ids: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers]:
        """Draw payer, payee (a different account) and amount of each transfer."""
        accounts = len(self._balances)
        payer = self._draws.below("payer", ids, accounts)
        payee = (payer + 1 + self._draws.below("payee", ids, accounts - 1)) % accounts
        return payer, payee, 1 + self._draws.below("amount", ids, _MOST)

    def _moved(self, accounts: _Numbers, amount: _Numbers) -> _Numbers:
        return np.bincount(accounts, amount, len(self._balances)).astype(np.int64)

    def _balances_after(self, accounts: _Numbers, moved: _Numbers) -> _Numbers:
        """Return the balance of each account right after each movement, and store the last ones."""
        order = np.argsort(accounts, kind="stable")
        own, begun, sizes = np.unique(accounts[order], return_index=True, return_counts=True)
        sums = np.cumsum(moved[order])
        earlier = np.where(begun > 0, sums[begun - 1], 0)
        running = sums + np.repeat(self._balances[own] - earlier, sizes)
        self._balances[own] = running[begun + sizes - 1]
        after = np.empty_like(running)
        after[order] = running
        return after
