"""Load on the demo's database: a mix of shop and bank transactions at a steady rate.

::

    Load ──▶ worker 0 ─▶ its own connection ─▶ one function call per transaction (prepared, committed at once)
        └──▶ worker 1 ─▶ …                     due at start + (k + n / workers) · workers / rate, for its k-th

Open loop: the due time of transaction k does not depend on the duration of earlier ones. A late worker does not sleep
until it has caught up; an early worker sleeps.

No deadlock: a transfer locks its two accounts in the order of their ids; a shop transaction locks at most one customer
and orders that this worker has placed. The seed determines the actions of a worker, except the ids of new orders and
the timestamps in the rows.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

from penstock.errors import TransientError, UsageError

__all__ = ["Load"]

_TRANSFER = "SELECT bank.transfer(%s::integer, %s::integer, %s::numeric, %s)"
_PLACE = "SELECT shop.place_order(%s::bigint, %s::integer, %s::integer)"
_PAY = "SELECT shop.pay_order(%s::bigint, %s)"
_STATUS = "UPDATE shop.orders SET status = %s, priority = priority + 1, changed_at = now() WHERE id = %s::bigint"
_REMOVE = "SELECT shop.remove_order(%s::bigint)"
_CUSTOMER = """
UPDATE shop.customers SET loyalty_points = loyalty_points + %s::integer, newsletter = NOT newsletter, changed_at = now()
 WHERE id = %s::bigint
"""
_PROFILE = """
UPDATE shop.customers SET profile = profile || jsonb_build_object('visits', %s::integer), changed_at = now()
 WHERE id = %s::bigint
"""

_WAITING_ORDERS = 10_000
_STOP_TIMEOUT = 30.0


class Load:
    """Runs transactions between `start` and `stop`.

    The database at `url` must contain the tables of `create_shop` and `create_bank`. `rate` is the number of
    transactions per second of all `threads` together; half of them are transfers.
    """

    def __init__(self, url: str, rate: float = 50.0, threads: int = 2, seed: int = 0) -> None:
        if rate <= 0 or threads < 1:
            message = f"invalid load: {rate} transactions per second from {threads} threads"
            raise UsageError(message, "Use a rate greater than 0 and at least one thread.")
        self._stopping = threading.Event()
        self._workers = [_Worker(url, n, threads, rate, seed, self._stopping) for n in range(threads)]

    @property
    def transactions(self) -> int:
        """The number of transactions committed so far."""
        return sum(worker.transactions for worker in self._workers)

    @property
    def transfers(self) -> int:
        """The number of bank transfers among them."""
        return sum(worker.transfers for worker in self._workers)

    @property
    def running(self) -> bool:
        """Whether all workers are running; False after an error in one of them, which `stop` raises."""
        return all(worker.is_alive() for worker in self._workers)

    def start(self) -> Self:
        """Start the workers and return immediately. A load can be started once."""
        begin = time.monotonic()
        for worker in self._workers:
            worker.begin = begin
            worker.start()
        return self

    def stop(self) -> None:
        """Wait until the workers have finished their transactions; raise the error of a failed worker."""
        self._stopping.set()
        for worker in self._workers:
            if worker.ident is not None:
                worker.join(_STOP_TIMEOUT)
            if worker.is_alive():
                message = f"{worker.name} is still in a transaction after {_STOP_TIMEOUT:.0f} s"
                raise TransientError(message, "Check what it waits for: SELECT * FROM pg_stat_activity;")
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; an error of the block takes precedence over an error of a worker."""
        try:
            self.stop()
        except Exception:
            if error is None:
                raise


class _Worker(threading.Thread):
    """A thread with one connection, and the transactions that it runs."""

    def __init__(self, url: str, number: int, workers: int, rate: float, seed: int, stopping: threading.Event) -> None:
        super().__init__(name=f"penstock-load-{number}", daemon=True)
        self.transactions = 0
        self.transfers = 0
        self.error: Exception | None = None
        self.begin = 0.0
        self._url = url
        self._phase = number / workers
        self._interval = workers / rate
        self._random = random.Random(f"{seed}/{number}")  # noqa: S311  # a load, not a secret
        self._stopping = stopping
        self._placed: deque[int] = deque(maxlen=_WAITING_ORDERS)
        self._paid: deque[int] = deque(maxlen=_WAITING_ORDERS)
        self._cancelled: deque[int] = deque(maxlen=_WAITING_ORDERS)
        self._kinds: dict[Callable[[], None], int] = {
            self._transfer: 50,
            self._place: 17,
            self._pay: 10,
            self._ship: 7,
            self._cancel: 4,
            self._remove: 4,
            self._change_customer: 8,
        }

    def run(self) -> None:
        """Run transactions until stopped, or until an error."""
        try:
            with psycopg.connect(self._url, autocommit=True, prepare_threshold=0) as connection:
                self._connection = connection
                self._read_sizes()
                self._work()
        except Exception as error:
            self.error = error

    def _read_sizes(self) -> None:
        """Read the sizes of the tables."""
        self._accounts: int = self._value("SELECT max(id) FROM bank.accounts")
        self._customers: int = self._value("SELECT max(id) FROM shop.customers")

    def _work(self) -> None:
        kinds, weights = list(self._kinds), list(self._kinds.values())
        while not self._wait():
            self._random.choices(kinds, weights)[0]()
            self.transactions += 1

    def _wait(self) -> bool:
        """Sleep until the next transaction is due; return whether to stop instead."""
        due = self.begin + (self.transactions + self._phase) * self._interval
        early = due - time.monotonic()
        return self._stopping.wait(early) if early > 0 else self._stopping.is_set()

    def _value(self, statement: str, *arguments: object) -> Any:
        row = self._connection.execute(statement, arguments).fetchone()
        return row[0] if row else None

    def _transfer(self) -> None:
        giver, taker = self._random.sample(range(1, self._accounts + 1), 2)
        amount = f"{self._random.randint(1, 10_000) / 100:.2f}"
        self._value(_TRANSFER, giver, taker, amount, "demo")
        self.transfers += 1

    def _place(self) -> None:
        customer = self._random.randint(1, self._customers)
        self._placed.append(self._value(_PLACE, customer, self._random.randint(1, 5), self._random.randrange(100_000)))

    def _pay(self) -> None:
        if not self._placed:
            return self._place()
        order = self._placed.popleft()
        self._value(_PAY, order, self._random.choice(("card", "transfer", "cash")))
        self._paid.append(order)
        return None

    def _ship(self) -> None:
        if not self._paid:
            return self._pay()
        self._connection.execute(_STATUS, ("shipped", self._paid.popleft()))
        return None

    def _cancel(self) -> None:
        if not self._placed:
            return self._place()
        order = self._placed.popleft()
        self._connection.execute(_STATUS, ("cancelled", order))
        self._cancelled.append(order)
        return None

    def _remove(self) -> None:
        if not self._cancelled:
            return self._cancel()
        self._value(_REMOVE, self._cancelled.popleft())
        return None

    def _change_customer(self) -> None:
        """Update a customer; four times out of five, without the large columns."""
        statement = _PROFILE if self._random.random() < 0.2 else _CUSTOMER
        self._connection.execute(statement, (self._random.randrange(10), self._random.randint(1, self._customers)))
