"""The bank by way of Debezium and Kafka: both killed again and again, and `penstock run` too; every look is right.

One source reads Avro with transaction metadata: it moves from one transaction of Postgres to a later one, over both
tables. The other reads JSON, each topic on its own, and comes to the same in the end. ``PENSTOCK_BANK_MINUTES`` says
for how long.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.demo.bank import create_bank
from penstock.demo.invariants import bank_look
from penstock.home import Home
from penstock.testing.debezium import Converter, Debezium
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.postgres import start_postgres
from penstock.testing.registry import start_registry
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.engine.shop import until

MINUTES = float(os.environ.get("PENSTOCK_BANK_MINUTES", "0.5"))
SEED = int(os.environ.get("PENSTOCK_BANK_SEED", "0"))
ACCOUNTS = 20
TABLES = ("bank.accounts", "bank.transfers")
LOOK = bank_look("avro.accounts", "avro.transfers")
STATEMENTS = """
CREATE SOURCE avro FROM KAFKA BROKER '{broker}' TOPICS ('avro.bank.accounts', 'avro.bank.transfers')
  KEY FORMAT AVRO VALUE FORMAT AVRO USING SCHEMA REGISTRY '{registry}'
  ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 'avro.transaction') WITH (timestamp frequency ms = 200);
CREATE SOURCE json FROM KAFKA BROKER '{broker}' TOPICS ('json.bank.accounts', 'json.bank.transfers')
  KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM UPSERT WITH (timestamp frequency ms = 200);
"""


class Running(Penstock):
    """`penstock run` with a file of statements."""

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.cli", "run", self.url, "--home", str(self.home)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


class Transfers:
    """Transfers between random accounts, in a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _go_on(self) -> None:
        dice = random.Random(SEED)
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(0.2):
                giver, taker = dice.sample(range(1, ACCOUNTS + 1), 2)
                connection.execute("SELECT bank.transfer(%s, %s, %s, 'x')", (giver, taker, dice.randint(1, 900)))


@dataclass
class World:
    """Everything that runs."""

    database: Database
    broker: KafkaBroker
    debezium: Debezium
    running: Running
    kills: int = 0

    def kill_something(self, dice: random.Random) -> None:
        """Kill one part, and start it again."""
        how: list[Callable[[], object]] = [self._kill_debezium, self.running.kill, self._kill_capture]
        how[self.kills % len(how)]()
        self.kills += 1
        time.sleep(dice.uniform(0, 2))
        assert self.running.process is not None
        if self.running.process.poll() is not None:
            self.running.start()

    def _kill_debezium(self) -> None:
        self.debezium.kill()
        self.debezium.start()

    def _kill_capture(self) -> None:
        if self.running.capture_pid() is not None:
            self.running.kill_capture()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        server = stack.enter_context(start_postgres(fsync=False))
        broker = stack.enter_context(start_kafka(tmp_path / "kafka"))
        registry = stack.enter_context(start_registry(tmp_path / "registry"))
        server.create_database("bank")
        database = Database(server, "bank")
        with database.connect() as connection:
            create_bank(connection, accounts=ACCOUNTS)
        for table in TABLES:
            database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        database.execute("SELECT bank.transfer(1, 2, 5, 'so that there is a row')")
        debezium = stack.enter_context(Debezium(tmp_path / "debezium", database.url, broker.bootstrap, registry.url))
        debezium.add("avro", TABLES, Converter.AVRO)
        debezium.add("json", TABLES, Converter.JSON_WITH_SCHEMAS)
        debezium.start()
        debezium.await_all()
        debezium.restart()  # from here on it repeats itself when it is killed
        database.execute("SELECT bank.transfer(2, 1, 5, 'so that there is a transaction')")
        debezium.await_all()
        statements = tmp_path / "bank.sql"
        statements.write_text(STATEMENTS.format(broker=broker.bootstrap, registry=registry.url))
        running = Running(tmp_path / "home", str(statements))
        running.start()
        yield World(database, broker, debezium, running)
        if running.process is not None and running.process.poll() is None:
            running.kill()


def check_all(world: World, home: Home, spark: SparkSession, source: str, transfers: int) -> None:
    """Wait for the last transfer; then the tables are what Postgres has."""
    count = f"SELECT count(*) FROM {source}.transfers"
    until(lambda: home.live(spark).sql(count).collect()[0][0] == transfers, f"{source} has all transfers")
    sums = "SELECT count(*), sum(balance * (id + 7)), sum(transfer_count * (id + 7)) FROM {}"
    ((*expected,),) = world.database.execute(sums.format("bank.accounts"))
    until(
        lambda: list(home.live(spark).sql(sums.format(f"{source}.accounts")).collect()[0]) == expected,
        f"{source} has the accounts as they are",
    )


@pytest.mark.deep
@pytest.mark.timeout(MINUTES * 60 + 1500)
def test_every_look_at_the_bank_is_right(world: World, spark: SparkSession) -> None:
    dice = random.Random(SEED)
    until(lambda: (world.running.home / "penstock.db").exists(), "there is a home")
    home = Home(world.running.home)
    until(lambda: _states(home) == {"live"}, "all tables are there")
    ((total,),) = world.database.execute("SELECT sum(opening) FROM bank.accounts")
    transfers = Transfers(world.database.url)
    looks, seen, end = 0, 0, time.monotonic() + MINUTES * 60
    while time.monotonic() < end or world.kills < 3:
        for _ in range(3):
            (look,) = home.live(spark).sql(LOOK).collect()
            assert (look.total, look.broken) == (total, 0)
            assert look.transfers >= seen, "time goes forward"
            seen, looks = look.transfers, looks + 1
        world.kill_something(dice)
    transfers.stop()
    world.debezium.await_all()
    ((made,),) = world.database.execute("SELECT count(*) FROM bank.transfers")
    for source in ("avro", "json"):
        check_all(world, home, spark, source, made)
    (look,) = home.live(spark).sql(LOOK).collect()
    assert (look.total, look.broken, look.transfers) == (total, 0, made)
    (other,) = home.live(spark).sql(bank_look("json.accounts", "json.transfers")).collect()
    assert (other.total, other.broken, other.transfers) == (total, 0, made)
    print(f"{world.kills} kills, {looks} looks, {made} transfers")
    assert world.running.interrupt() == 0


def _states(home: Home) -> set[str]:
    return {table.state for source in home.status().sources for table in source.tables}
