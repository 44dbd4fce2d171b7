"""The bank under load while its parts are killed repeatedly: every read, live or as of a past position, is consistent.

``PENSTOCK_BANK_MINUTES`` is the duration. Each check opens a live view, checks the total and both sides of every
transfer, and reads a random past position twice. At the end, more past positions are read, up to
``PENSTOCK_BANK_PASTS`` in total.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.demo.load import Load
from penstock.demo.scenario import bank_look, create_bank
from penstock.demo.shop import create_shop
from penstock.home import Home
from penstock.live import Live
from penstock.positions import Lsn
from penstock.testing.postgres import start_postgres
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.end_to_end.test_kill import wait_for_snapshot

pytestmark = pytest.mark.deep

MINUTES = float(os.environ.get("PENSTOCK_BANK_MINUTES", "0.25"))
PASTS = int(os.environ.get("PENSTOCK_BANK_PASTS", "3"))
SEED = int(os.environ.get("PENSTOCK_BANK_SEED", "0"))
CHECKS = 2
"""At least as many live views are checked after the first kill, however slow the machine is."""
ACCOUNTS = 50
RATE = 40
CHECK_QUERY = bank_look("demo.accounts", "demo.transfers")
ROWS = " UNION ALL ".join(
    f"SELECT '{name}', count(*), bit_xor(xxhash64(*)) FROM demo.{name}" for name in ("accounts", "transfers")
)


class Bank:
    """A server, `penstock run` and a load; each can be killed and is restarted."""

    def __init__(self, database: Database, running: Penstock) -> None:
        self.database = database
        self.running = running
        self.load = Load(database.url, rate=RATE).start()
        self.kills = 0

    def kill_something(self, rng: random.Random) -> None:
        """Kill one part, or everything."""
        kills: list[Callable[[], object]] = [
            self._kill_capture,
            self.running.kill_jvm,
            self.running.kill,
            self._kill_postgres,
            self._kill_all,
        ]
        rng.choice(kills)()
        self.kills += 1
        self._restart(rng)

    def close(self) -> None:
        self.load.stop()

    def _kill_capture(self) -> None:
        if self.running.capture_pid() is not None:  # it may not have started yet
            self.running.kill_capture()

    def _kill_all(self) -> None:
        self.running.kill()
        self._kill_postgres()

    def _kill_postgres(self) -> None:
        self.database.server.kill()

    def _restart(self, rng: random.Random) -> None:
        time.sleep(rng.uniform(0, 3))
        if not self.database.server.running:
            with pytest.raises(psycopg.OperationalError):
                self.load.stop()
            self.database.server.start()
            self.load = Load(self.database.url, rate=RATE, seed=self.kills).start()
        assert self.running.process is not None
        if self.running.process.poll() is not None:
            self.running.start()


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with start_postgres(fsync=False) as server:
        server.create_database("bank")
        database = Database(server, "bank")
        with database.connect() as connection:
            create_shop(connection, customers=20)
            create_bank(connection, accounts=ACCOUNTS)
        running = Penstock(tmp_path / "home", database.url, ("--schema=bank",), {"PENSTOCK_APPLY_REST": "1"})
        running.start()
        yield Bank(database, running)
        if running.process is not None and running.process.poll() is None:
            running.kill()


def check(live: Live, total: object) -> int:
    """Check the totals of a view; return the number of transfers."""
    (row,) = live.sql(CHECK_QUERY).collect()
    assert (row.total, row.broken) == (total, 0), f"at {live.position}"
    return int(row.transfers)


def check_past(home: Home, spark: SparkSession, rng: random.Random, first: Lsn, total: object) -> None:
    """Read a past position twice; between the reads, apply may have advanced the tables."""
    position = Lsn(rng.randint(first, home.frontiers("demo").durable))
    past = home.live(spark, as_of=position)
    check(past, total)
    assert past.position == position
    transfers_seen = sorted(map(tuple, past.sql(ROWS).collect()))
    assert sorted(map(tuple, home.live(spark, as_of=position).sql(ROWS).collect())) == transfers_seen


@pytest.mark.timeout(MINUTES * 60 + 1500)
def test_every_read_of_the_bank_is_consistent(bank: Bank, spark: SparkSession) -> None:
    rng = random.Random(SEED)
    home = wait_for_snapshot(bank.running)
    ((total,),) = bank.database.execute("SELECT sum(opening) FROM bank.accounts")
    first = home.live(spark).position
    checks, after_kill, transfers_seen, end = 0, 0, 0, time.monotonic() + MINUTES * 60
    next_kill = time.monotonic() + rng.uniform(5, 20)
    while time.monotonic() < end or not bank.kills or checks < after_kill + CHECKS:
        transfers = check(home.live(spark), total)
        assert transfers >= transfers_seen, "the number of transfers never decreases"
        transfers_seen = transfers
        check_past(home, spark, rng, first, total)
        checks += 1
        if time.monotonic() >= next_kill and (time.monotonic() < end or not bank.kills):
            bank.kill_something(rng)
            after_kill = after_kill or checks
            next_kill = time.monotonic() + rng.uniform(5, 40)
    bank.close()
    for _ in range(checks, PASTS):
        check_past(home, spark, rng, first, total)
    print(
        f"{bank.kills} kills, {checks} live checks, {max(checks, PASTS)} checks of the past, {transfers_seen} transfers"
    )
    verdicts = home.verify(spark, "demo")
    assert [verdict.table for verdict in verdicts if not verdict.equal] == []
    assert transfers_seen > 0
    assert bank.running.interrupt() == 0
