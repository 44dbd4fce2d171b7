"""The scenarios of the load generator: a bank and an auction house.

A scenario has tables, and transactions that depend only on a seed and their number: the same seed gives the same rows.
Pseudo-random numbers are a hash (splitmix64) of the seed, a name and an index.

**Bank.** Each transfer is one transaction, which inserts its row and updates the balances of both accounts. All
balances are 1000 at first, and their sum is the same at every position. A balance may be negative. To resume at a
position, the generator adds up all earlier transfers, about ten million per second.

**Auction.** The first transaction inserts organizations and their users; then one auction follows, ten bids, and so on.
Rows are never updated. Timestamps advance by one second per transaction from the beginning of 2026, regardless of the
rate.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import Image, TableName
from penstock.sources.polling_steps import Changes, inserted
from penstock.sources.row_tables import RowTable

__all__ = ["BIDS", "OPENING", "Auction", "Bank", "Scenario"]


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


# -- random numbers ----------------------------------------------------------------------------------------------------

_Numbers = npt.NDArray[np.int64]


_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class _Draws:
    """Named streams of pseudo-random numbers, with random access by index."""

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed)

    def below(self, name: str, numbers: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
        """Return one value in the range from 0 to `limit` - 1 for each index."""
        with np.errstate(over="ignore"):
            stream = _mixed(np.array([self._seed ^ np.uint64(zlib.crc32(name.encode()) << 16)]))
            drawn = _mixed(numbers.astype(np.uint64) * _GAMMA + stream)
        return (drawn % np.uint64(limit)).astype(np.int64)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


# -- bank --------------------------------------------------------------------------------------------------------------

OPENING = 1000
"""The initial balance of each account."""
_MOST = 100
_AT_ONCE = 1 << 20
_ACCOUNTS = pa.schema([("id", pa.int64()), ("balance", pa.int64())])
_TRANSFERS = pa.schema([("id", pa.int64()), ("payer", pa.int64()), ("payee", pa.int64()), ("amount", pa.int64())])


class Bank(Scenario):
    """Transfers between accounts."""

    def __init__(self, source: str, seed: int, accounts: int) -> None:
        self._accounts = RowTable.of(TableName(source, "accounts"), _ACCOUNTS, ("id",))
        self._transfers = RowTable.of(TableName(source, "transfers"), _TRANSFERS, ("id",))
        self._draws = _Draws(seed)
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


# -- auction -----------------------------------------------------------------------------------------------------------

BIDS = 10
"""The number of bids per auction."""
_CYCLE = BIDS + 1
_MEMBERS = 50
_OPEN_SECONDS = 10
_START = 1_767_225_600
"""The beginning of 2026, in seconds since 1970."""
_TIME = pa.timestamp("us", "UTC")
_ITEMS = pa.array(["a bridge", "a clock", "a globe", "a lamp", "a loom", "a sail", "a sextant", "a wheel"])
_ORGANIZATIONS = pa.schema([("id", pa.int64()), ("name", pa.string())])
_USERS = pa.schema([("id", pa.int64()), ("org_id", pa.int64()), ("name", pa.string())])
_AUCTIONS = pa.schema([("id", pa.int64()), ("seller", pa.int64()), ("item", pa.string()), ("end_time", _TIME)])
_BIDS = pa.schema(
    [
        *(("id", pa.int64()), ("buyer", pa.int64()), ("auction_id", pa.int64())),
        *(("amount", pa.int64()), ("bid_time", _TIME)),
    ]
)


class Auction(Scenario):
    """Auctions and bids."""

    def __init__(self, source: str, seed: int, users: int) -> None:
        self._organizations = RowTable.of(TableName(source, "organizations"), _ORGANIZATIONS, ("id",))
        self._users = RowTable.of(TableName(source, "users"), _USERS, ("id",))
        self._auctions = RowTable.of(TableName(source, "auctions"), _AUCTIONS, ("id",))
        self._bids = RowTable.of(TableName(source, "bids"), _BIDS, ("id",))
        self._draws = _Draws(seed)
        self._count = users
        self._done = 0

    def tables(self) -> Sequence[RowTable]:
        """Return the four tables."""
        return self._organizations, self._users, self._auctions, self._bids

    def go_to(self, done: int) -> None:
        """Set the position; no state depends on earlier transactions."""
        self._done = done

    def next(self, count: int) -> Sequence[Changes]:
        """Return the next auctions and bids; the first transaction adds the users."""
        opening = self._done == 0
        numbers = np.arange(max(self._done, 1), self._done + count) - 1
        of = np.arange(len(numbers)) + int(opening)
        self._done += count
        sold = numbers % _CYCLE == 0
        return [
            *(self._open() if opening else []),
            Changes(self._auctions.name, self._sold(numbers[sold]), Image.INSERTED, of[sold]),
            Changes(self._bids.name, self._bid(numbers[~sold]), Image.INSERTED, of[~sold]),
        ]

    def _open(self) -> list[Changes]:
        users = np.arange(self._count)
        organizations = np.arange(-(-self._count // _MEMBERS))
        return [
            inserted(
                self._organizations.name,
                _batch(_ORGANIZATIONS, organizations, _named("organization ", organizations)),
            ),
            inserted(self._users.name, _batch(_USERS, users, users // _MEMBERS, _named("user ", users))),
        ]

    def _sold(self, numbers: _Numbers) -> pa.RecordBatch:
        ids = numbers // _CYCLE
        seller = self._draws.below("seller", ids, self._count)
        item = _ITEMS.take(pa.array(self._draws.below("item", ids, len(_ITEMS))))
        return _batch(_AUCTIONS, ids, seller, item, _times(numbers + _OPEN_SECONDS))

    def _bid(self, numbers: _Numbers) -> pa.RecordBatch:
        auction = numbers // _CYCLE
        ids = auction * BIDS + numbers % _CYCLE - 1
        buyer = self._draws.below("buyer", ids, self._count)
        amount = 1 + self._draws.below("bid", ids, 100)
        return _batch(_BIDS, ids, buyer, auction, amount, _times(numbers))


def _batch(schema: pa.Schema, *columns: _Numbers | pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema)


def _named(what: str, numbers: _Numbers) -> pa.Array:
    return pa.array(np.char.add(what, numbers.astype(np.str_)))


def _times(seconds: _Numbers) -> pa.Array:
    return pa.array((seconds + _START) * 1_000_000).view(_TIME)
