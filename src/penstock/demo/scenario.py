"""The demo without its user interface: a database under load, and repeated queries of its live tables.

A *look* is one live view, with all tables at one position. Each look checks the bank's invariants in Spark, over
accounts and transfers together; every third look also counts the rows of another table.

The bank consists of transfers between accounts, with a constant sum of all balances::

    bank.transfers   one row per transfer: from_account, to_account, amount
    bank.accounts    opening (never changes), balance, transfer_count

One transaction inserts a transfer and updates both of its accounts. Therefore, between any two transactions,

- Σ balance = Σ opening, and
- for every account, balance = opening + Σ amounts in - Σ amounts out, and transfer_count is the number of both.

A reader that sees a violation has seen part of a transaction. An account may be overdrawn; therefore a transfer never
fails.

The invariants of bank and shop (`penstock.demo.shop`) are SQL for both Postgres and Spark. Each query returns a row for
each violation of its invariant. All tables of one query must be read at one position. `bank_checks` and `shop_checks`
insert the names of the tables in the engine that runs the query.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from penstock.demo.shop import create_shop
from penstock.embedded.postgres import start_postgres
from penstock.home import Home
from penstock.positions import Lsn

__all__ = [
    "DATABASE",
    "LatencySampler",
    "Look",
    "Looker",
    "bank_checks",
    "bank_look",
    "create_bank",
    "shop_checks",
    "start_database",
]

DATABASE = "demo"
_COUNT_EVERY = 3


@contextmanager
def start_database() -> Iterator[str]:
    """Run an embedded Postgres with a shop and a bank; yield its URL."""
    with start_postgres() as server:
        server.create_database(DATABASE)
        url = server.url_for(DATABASE)
        with psycopg.connect(url, autocommit=True) as connection:
            create_shop(connection)
            create_bank(connection)
            connection.execute("ANALYZE")
        yield url


@dataclass(frozen=True)
class Look:
    """The result of one look."""

    position: Lsn
    total: Decimal
    transfers: int
    broken: int
    """The number of accounts that violate an invariant: always 0."""
    seconds: float


@dataclass
class Looker:
    """Queries the live tables of a home, and keeps the results."""

    home: Home
    spark: SparkSession
    source: str
    looks: list[Look] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """The number of rows of each table, at the last look that counted it."""

    def look(self) -> Look:
        """Open a live view and query it."""
        started = time.monotonic()
        live = self.home.live(self.spark)
        accounts, transfers = f"{self.source}.accounts", f"{self.source}.transfers"
        total, count, broken = live.sql(bank_look(accounts, transfers)).collect()[0]
        self.rows[transfers] = int(count)
        if len(self.looks) % _COUNT_EVERY == 0:
            name = next((name for name in live.tables() if name not in self.rows), live.tables()[0])
            self.rows[name] = live.table(name).count()
        found = Look(live.position, total, int(count), broken, time.monotonic() - started)
        self.looks.append(found)
        return found

    @property
    def steady(self) -> bool:
        """Whether the sum of balances was the same at every look, and no look found a violation."""
        return len({look.total for look in self.looks}) <= 1 and not any(look.broken for look in self.looks)


class LatencySampler:
    """Samples the latency from the commit of a transaction until a reader of the log can see it.

    The reader polls every few milliseconds, and samples the last transaction of each batch.
    """

    def __init__(self, home: Home, source: str) -> None:
        self._home = home
        self._source = source
        self._samples: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="penstock-latency", daemon=True)

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def percentiles(self) -> tuple[float, float] | None:
        """Return median and 99th percentile in milliseconds, once there are samples."""
        samples = list(self._samples)
        if len(samples) < 2:
            return None
        return statistics.median(samples), statistics.quantiles(samples, n=100)[98]

    def _sample(self) -> None:
        last = None
        for frontiers in self._home.watch(self._source, self._stop):
            if frontiers.committed_at is not None and frontiers.committed_at != last:
                last = frontiers.committed_at
                self._samples.append((datetime.now(UTC) - last).total_seconds() * 1000)


# -- bank --------------------------------------------------------------------------------------------------------------

_TABLES = """
CREATE SCHEMA bank;
CREATE TABLE bank.accounts (
    id             integer PRIMARY KEY,
    owner          text NOT NULL,
    opening        numeric(14, 2) NOT NULL,
    balance        numeric(14, 2) NOT NULL,
    transfer_count bigint NOT NULL DEFAULT 0,
    opened_on      date NOT NULL,
    changed_at     timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE bank.transfers (
    id           bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    from_account integer NOT NULL REFERENCES bank.accounts,
    to_account   integer NOT NULL REFERENCES bank.accounts,
    amount       numeric(14, 2) NOT NULL CHECK (amount > 0),
    memo         varchar(40),
    made_at      timestamptz NOT NULL DEFAULT now(),
    CHECK (from_account <> to_account)
);
COMMENT ON TABLE bank.accounts IS 'Accounts of the demo''s bank; the sum of all balances never changes';
COMMENT ON TABLE bank.transfers IS 'Transfers between accounts; each one comes with two changed balances';
"""

_TRANSFER = """
CREATE FUNCTION bank.transfer(giver integer, taker integer, moved numeric, memo text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- Locks are taken in the order of ids: two transfers never wait for each other.
    PERFORM FROM bank.accounts WHERE id IN (giver, taker) ORDER BY id FOR UPDATE;
    INSERT INTO bank.transfers (from_account, to_account, amount, memo) VALUES (giver, taker, moved, memo);
    UPDATE bank.accounts SET balance = balance - moved, transfer_count = transfer_count + 1, changed_at = now()
     WHERE id = giver;
    UPDATE bank.accounts SET balance = balance + moved, transfer_count = transfer_count + 1, changed_at = now()
     WHERE id = taker;
END
$$;
"""

_ACCOUNTS = """
INSERT INTO bank.accounts (id, owner, opening, balance, opened_on)
SELECT i, 'Owner ' || i, money, money, date '2020-01-01' + i % 2000
  FROM generate_series(1, {accounts}) AS i, LATERAL (SELECT 1000 + i * 37 % 9000 + i % 100 / 100.0) AS m (money)
"""


def create_bank(connection: psycopg.Connection[Any], accounts: int = 1000) -> None:
    """Create schema ``bank`` with this number of accounts and no transfers, in one transaction."""
    with connection.transaction():
        connection.execute(_TABLES)
        connection.execute(_TRANSFER)
        connection.execute(sql.SQL(_ACCOUNTS).format(accounts=sql.Literal(accounts)))


# -- invariants --------------------------------------------------------------------------------------------------------

_BANK = {
    "money is neither made nor lost": """
SELECT sum(balance) - sum(opening) AS difference
  FROM {accounts}
HAVING sum(balance) <> sum(opening)
""",
    "each balance is the sum of its transfers": """
SELECT a.id, a.balance, a.opening, m.net, a.transfer_count, m.transfers
  FROM {accounts} AS a
  LEFT JOIN (
       SELECT account, sum(change) AS net, count(*) AS transfers
         FROM (SELECT from_account AS account, -amount AS change FROM {transfers}
               UNION ALL
               SELECT to_account AS account, amount AS change FROM {transfers}) AS moves
        GROUP BY account
  ) AS m ON m.account = a.id
 WHERE a.balance <> a.opening + coalesce(m.net, 0)
    OR a.transfer_count <> coalesce(m.transfers, 0)
""",
    "each transfer is between two accounts": """
SELECT t.id
  FROM {transfers} AS t
  LEFT JOIN {accounts} AS giver ON giver.id = t.from_account
  LEFT JOIN {accounts} AS taker ON taker.id = t.to_account
 WHERE giver.id IS NULL OR taker.id IS NULL
""",
}


def bank_checks(accounts: str = "bank.accounts", transfers: str = "bank.transfers") -> dict[str, str]:
    """Return the queries of the bank's invariants, by description."""
    return {name: text.format(accounts=accounts, transfers=transfers) for name, text in _BANK.items()}


_SHOP = {
    "each order's total is the sum of its lines": """
SELECT o.id, o.total, l.total AS total_of_lines
  FROM {orders} AS o
  LEFT JOIN (SELECT order_id, sum(quantity * price) AS total FROM {order_lines} GROUP BY order_id) AS l
    ON l.order_id = o.id
 WHERE l.total IS NULL OR o.total <> l.total
""",
    "each line and payment has its order": """
SELECT dependent.order_id
  FROM (SELECT order_id FROM {order_lines} UNION ALL SELECT order_id FROM {payments}) AS dependent
  LEFT JOIN {orders} AS o ON o.id = dependent.order_id
 WHERE o.id IS NULL
""",
}


def shop_checks(
    orders: str = "shop.orders", order_lines: str = "shop.order_lines", payments: str = "shop.payments"
) -> dict[str, str]:
    """Return the queries of the shop's invariants, by description."""
    names = {"orders": orders, "order_lines": order_lines, "payments": payments}
    return {name: text.format(**names) for name, text in _SHOP.items()}


_LOOK = """
SELECT sum(a.balance) AS total, sum(coalesce(m.sides, 0)) / 2 AS transfers,
       count_if(a.balance <> a.opening + coalesce(m.net, 0) OR a.transfer_count <> coalesce(m.sides, 0)) AS broken
  FROM {accounts} AS a
  LEFT JOIN (
       SELECT side.account, sum(side.change) AS net, count(*) AS sides
         FROM {transfers} LATERAL VIEW explode(array(
              named_struct('account', from_account, 'change', -amount),
              named_struct('account', to_account, 'change', amount))) AS side
        GROUP BY side.account
  ) AS m ON m.account = a.id
"""


def bank_look(accounts: str, transfers: str) -> str:
    """Return one query for Spark with the sum of balances, the number of transfers and the number of violations.

    ``broken`` counts accounts whose balance or number of transfers does not match their transfers.
    """
    return _LOOK.format(accounts=accounts, transfers=transfers)
