"""The demo without its user interface: a database under load, and repeated queries of its live tables.

A *look* is one live view, with all tables at one position. Each look checks the bank's invariants in Spark, over
accounts and transfers together; every third look also counts the rows of another table.
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
from typing import Self

import psycopg
from pyspark.sql import SparkSession

from penstock.demo.bank import create_bank
from penstock.demo.invariants import bank_look
from penstock.demo.shop import create_shop
from penstock.embedded.postgres import start_postgres
from penstock.home import Home
from penstock.positions import Lsn

__all__ = ["DATABASE", "LatencySampler", "Look", "Looker", "start_database"]

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
