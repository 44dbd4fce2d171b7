"""An auction house: organizations and their users in the first transaction; then one auction, ten bids, and so on.

Rows are never updated. Timestamps advance by one second per transaction from the beginning of 2026, regardless of the
rate: the same seed gives the same rows.
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

__all__ = ["BIDS", "Auction"]

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
_Numbers = npt.NDArray[np.int64]


class Auction(Scenario):
    """Auctions and bids."""

    def __init__(self, source: str, seed: int, users: int) -> None:
        self._organizations = RowTable.of(TableName(source, "organizations"), _ORGANIZATIONS, ("id",))
        self._users = RowTable.of(TableName(source, "users"), _USERS, ("id",))
        self._auctions = RowTable.of(TableName(source, "auctions"), _AUCTIONS, ("id",))
        self._bids = RowTable.of(TableName(source, "bids"), _BIDS, ("id",))
        self._draws = Draws(seed)
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
