"""The bank through Debezium and Kafka, while Debezium and `penstock run` are killed repeatedly: reads are consistent.

One source reads Avro with transaction metadata: its tables advance together, by whole Postgres transactions. The other
reads JSON, each topic independently, and has the same rows at the end. ``PENSTOCK_BANK_MINUTES`` is the duration.
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

from penstock.demo.scenario import bank_look, create_bank
from penstock.home import Home
from penstock.testing.cluster import BRIEF
from penstock.testing.debezium import Converter, Debezium
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.postgres import start_postgres
from penstock.testing.registry import start_registry
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.engine.shop import until

MINUTES = float(os.environ.get("PENSTOCK_BANK_MINUTES", "0.25"))
SEED = int(os.environ.get("PENSTOCK_BANK_SEED", "0"))
ACCOUNTS = 20
READS = 2
"""Before each kill."""
APPLY = {"PENSTOCK_APPLY_REST": "1"}
"""Less than in production, and enough for the reads beside it."""
TABLES = ("bank.accounts", "bank.transfers")
CHECK_QUERY = bank_look("avro.accounts", "avro.transfers")
STATEMENTS = """
CREATE SOURCE avro FROM KAFKA BROKER '{broker}' TOPICS ('avro.bank.accounts', 'avro.bank.transfers')
  KEY FORMAT AVRO VALUE FORMAT AVRO USING SCHEMA REGISTRY '{registry}'
  ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 'avro.transaction') WITH (timestamp frequency ms = 200);
CREATE SOURCE json FROM KAFKA BROKER '{broker}' TOPICS ('json.bank.accounts', 'json.bank.transfers')
  KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM UPSERT WITH (timestamp frequency ms = 200);
"""


class Running(Penstock):
    """`penstock run` with a SQL file."""

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.cli", "run", self.url, "--home", str(self.home)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=os.environ | BRIEF | APPLY, stdout=output, stderr=output, start_new_session=True
            )


class Transfers:
    """Makes transfers between random accounts, in a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rng = random.Random(SEED)
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(0.2):
                giver, taker = rng.sample(range(1, ACCOUNTS + 1), 2)
                connection.execute("SELECT bank.transfer(%s, %s, %s, 'x')", (giver, taker, rng.randint(1, 900)))


@dataclass
class Setup:
    """All running parts."""

    database: Database
    broker: KafkaBroker
    debezium: Debezium
    running: Running
    kills: int = 0

    def kill_something(self, rng: random.Random) -> None:
        """Kill one part, and restart it."""
        kills: list[Callable[[], object]] = [self._kill_debezium, self.running.kill, self._kill_capture]
        kills[self.kills % len(kills)]()
        self.kills += 1
        time.sleep(rng.uniform(0, 2))
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
def setup(tmp_path: Path) -> Iterator[Setup]:
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
        debezium.restart()  # after this, a killed Debezium sends records again
        database.execute("SELECT bank.transfer(2, 1, 5, 'so that there is a transaction')")
        debezium.await_all()
        statements = tmp_path / "bank.sql"
        statements.write_text(STATEMENTS.format(broker=broker.bootstrap, registry=registry.url))
        running = Running(tmp_path / "home", str(statements))
        running.start()
        yield Setup(database, broker, debezium, running)
        if running.process is not None and running.process.poll() is None:
            running.kill()


def check_equal(setup: Setup, home: Home, spark: SparkSession, source: str, transfers: int) -> None:
    """Wait for the last transfer; then the tables equal those of Postgres."""
    count = f"SELECT count(*) FROM {source}.transfers"
    until(lambda: home.live(spark).sql(count).collect()[0][0] == transfers, f"all transfers in {source}")
    sums = "SELECT count(*), sum(balance * (id + 7)), sum(transfer_count * (id + 7)) FROM {}"
    ((*expected,),) = setup.database.execute(sums.format("bank.accounts"))
    until(
        lambda: list(home.live(spark).sql(sums.format(f"{source}.accounts")).collect()[0]) == expected,
        f"equal accounts in {source}",
    )


@pytest.mark.deep
@pytest.mark.timeout(MINUTES * 60 + 1500)
def test_every_read_of_the_bank_is_consistent(setup: Setup, spark: SparkSession) -> None:
    rng = random.Random(SEED)
    until(lambda: (setup.running.home / "penstock.db").exists(), "the home")
    home = Home(setup.running.home)
    until(lambda: _states(home) == {"live"}, "all tables to be live")
    ((total,),) = setup.database.execute("SELECT sum(opening) FROM bank.accounts")
    transfers = Transfers(setup.database.url)
    checks, transfers_seen, end = 0, 0, time.monotonic() + MINUTES * 60
    while time.monotonic() < end or setup.kills < 3:
        for _ in range(READS):
            (row,) = home.live(spark).sql(CHECK_QUERY).collect()
            assert (row.total, row.broken) == (total, 0)
            assert row.transfers >= transfers_seen, "the number of transfers never decreases"
            transfers_seen, checks = row.transfers, checks + 1
        setup.kill_something(rng)
    transfers.stop()
    setup.debezium.await_all()
    ((total_transfers,),) = setup.database.execute("SELECT count(*) FROM bank.transfers")
    for source in ("avro", "json"):
        check_equal(setup, home, spark, source, total_transfers)
    (row,) = home.live(spark).sql(CHECK_QUERY).collect()
    assert (row.total, row.broken, row.transfers) == (total, 0, total_transfers)
    (other,) = home.live(spark).sql(bank_look("json.accounts", "json.transfers")).collect()
    assert (other.total, other.broken, other.transfers) == (total, 0, total_transfers)
    print(f"{setup.kills} kills, {checks} checks, {total_transfers} transfers")
    assert setup.running.interrupt() == 0


def _states(home: Home) -> set[str]:
    return {table.state for source in home.status().sources for table in source.tables}
