"""The bank under load while everything is killed, again and again: every look, now or at any past position, is right.

``PENSTOCK_BANK_MINUTES`` says for how long. A look takes a view, checks the sum and both halves of every transfer, and
reads a random past position twice. When all is over, more of the past is read, until ``PENSTOCK_BANK_PASTS`` positions
were.
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

from penstock.demo.bank import create_bank
from penstock.demo.invariants import bank_look
from penstock.demo.load import Load
from penstock.demo.shop import create_shop
from penstock.home import Home
from penstock.live import Live
from penstock.positions import Lsn
from penstock.testing.postgres import start_postgres
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.end_to_end.test_kill import wait_for_copy

pytestmark = pytest.mark.deep

MINUTES = float(os.environ.get("PENSTOCK_BANK_MINUTES", "0.5"))
PASTS = int(os.environ.get("PENSTOCK_BANK_PASTS", "5"))
SEED = int(os.environ.get("PENSTOCK_BANK_SEED", "0"))
ACCOUNTS = 50
RATE = 40
LOOK = bank_look("demo.accounts", "demo.transfers")
ROWS = " UNION ALL ".join(
    f"SELECT '{name}', count(*), bit_xor(xxhash64(*)) FROM demo.{name}" for name in ("accounts", "transfers")
)


class Bank:
    """A server, `penstock run` on it and a load; each can be killed, and all is started again."""

    def __init__(self, database: Database, running: Penstock) -> None:
        self.database = database
        self.running = running
        self.load = Load(database.url, rate=RATE).start()
        self.kills = 0

    def kill_something(self, dice: random.Random) -> None:
        """Kill one part, or everything."""
        how: list[Callable[[], object]] = [
            self._kill_capture,
            self.running.kill_jvm,
            self.running.kill,
            self._kill_postgres,
            self._kill_all,
        ]
        dice.choice(how)()
        self.kills += 1
        self._start_again(dice)

    def close(self) -> None:
        self.load.stop()

    def _kill_capture(self) -> None:
        if self.running.capture_pid() is not None:  # it may be about to start
            self.running.kill_capture()

    def _kill_all(self) -> None:
        self.running.kill()
        self._kill_postgres()

    def _kill_postgres(self) -> None:
        self.database.server.kill()

    def _start_again(self, dice: random.Random) -> None:
        time.sleep(dice.uniform(0, 3))
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
        running = Penstock(tmp_path / "home", database.url)
        running.start()
        yield Bank(database, running)
        if running.process is not None and running.process.poll() is None:
            running.kill()


def check(live: Live, total: object) -> int:
    """Return how many transfers there are."""
    (look,) = live.sql(LOOK).collect()
    assert (look.total, look.broken) == (total, 0), f"at {live.position}"
    return int(look.transfers)


def look_at_the_past(home: Home, spark: SparkSession, dice: random.Random, first: Lsn, total: object) -> None:
    """Read a past position twice; the second time, the tables may have been applied further."""
    position = Lsn(dice.randint(first, home.frontiers("demo").durable))
    past = home.live(spark, as_of=position)
    check(past, total)
    assert past.position == position
    seen = sorted(map(tuple, past.sql(ROWS).collect()))
    assert sorted(map(tuple, home.live(spark, as_of=position).sql(ROWS).collect())) == seen


@pytest.mark.timeout(MINUTES * 60 + 1500)
def test_every_look_at_the_bank_is_right(bank: Bank, spark: SparkSession) -> None:
    dice = random.Random(SEED)
    home = wait_for_copy(bank.running)
    ((total,),) = bank.database.execute("SELECT sum(opening) FROM bank.accounts")
    first = home.live(spark).position
    looks, seen, end = 0, 0, time.monotonic() + MINUTES * 60
    next_kill = time.monotonic() + dice.uniform(5, 20)
    while time.monotonic() < end or not bank.kills:
        transfers = check(home.live(spark), total)
        assert transfers >= seen, "time goes forward"
        seen = transfers
        look_at_the_past(home, spark, dice, first, total)
        looks += 1
        if time.monotonic() >= next_kill:
            bank.kill_something(dice)
            next_kill = time.monotonic() + dice.uniform(5, 40)
    bank.close()
    for _ in range(looks, PASTS):
        look_at_the_past(home, spark, dice, first, total)
    print(f"{bank.kills} kills, {looks} looks at now, {max(looks, PASTS)} at the past, {seen} transfers")
    verdicts = home.verify(spark, "demo")
    assert [verdict.table for verdict in verdicts if not verdict.equal] == []
    assert seen > 0
    assert bank.running.interrupt() == 0
