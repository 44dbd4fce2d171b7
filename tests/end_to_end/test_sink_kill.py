"""kill -9 of the running home, of capture and of the broker, under load: sinks lose, repeat and split nothing.

A bank with one sink of each kind: a topic for each table (ENVELOPE CHANGES), and one topic for all transactions. Each
account counts its changes, so that the counters in a topic show losses, repetitions and wrong order; each transfer
stores the id of its transaction, so that Postgres has the list of all transactions.

One campaign has no Spark, so that all parts start in a second and many moments are tried; the other runs
``penstock run``, and kills Spark's JVM, too. ``PENSTOCK_SINK_KILLS`` is the number of kills without Spark and
``PENSTOCK_SPARK_SINK_KILLS`` that with Spark; ``PENSTOCK_SINK_KILLS_SEED`` chooses them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.catalog.store import Catalog
from penstock.engine.sink_progress import SinkProgress, sink_progress
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.positions import Lsn
from penstock.testing.cluster import BRIEF
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.engine.sink_topics import committed

KILLS = int(os.environ.get("PENSTOCK_SINK_KILLS", "20"))
SPARK_KILLS = int(os.environ.get("PENSTOCK_SPARK_SINK_KILLS", "4"))
pytestmark = pytest.mark.deep
SEED = int(os.environ.get("PENSTOCK_SINK_KILLS_SEED", "0"))
ACCOUNTS, OPENING = 20, 1000
WRITERS, PAUSE = 3, 0.03
SHARE_AT_WORK = 0.6
"""The share of kills that come after the delivery of something, and not during the start of all parts."""
SETUP = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, counter int NOT NULL DEFAULT 0);
CREATE TABLE transfers (id serial PRIMARY KEY, payer int, payee int, amount int, xid bigint);
INSERT INTO accounts SELECT n, {OPENING} FROM generate_series(1, {ACCOUNTS}) n;
"""
PAY = "UPDATE accounts SET balance = balance + %s, counter = counter + 1 WHERE id = %s"
NOTE = "INSERT INTO transfers (payer, payee, amount, xid) VALUES (%s, %s, %s, pg_current_xact_id()::text::bigint)"


class Load:
    """Transfers between random accounts, by several writers."""

    def __init__(self, database: Database) -> None:
        self._database, self._stop = database, threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        with self._database.connect() as connection:
            while not self._stop.wait(rng.uniform(0, 2 * PAUSE)):
                _transfer(connection, rng)


def _transfer(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    """Change two accounts in the order of their ids, without deadlocks; one transaction in eight has many transfers."""
    with connection.transaction():
        for _ in range(rng.choice([1] * 7 + [30])):
            one, other = sorted(rng.sample(range(1, ACCOUNTS + 1), 2))
            connection.execute("SELECT pg_advisory_xact_lock(1)")
            amount = rng.randint(-50, 50)
            connection.execute(PAY, [amount, one])
            connection.execute(PAY, [-amount, other])
            connection.execute(NOTE, [one, other, amount])


class SinkHome(Penstock):
    """A home with capture and sinks in a process: see `tests.end_to_end.sink_home`."""

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.end_to_end.sink_home", str(self.home.absolute())]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


class SparkHome(Penstock):
    """``penstock run`` of a home that exists."""

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.cli", "run", "--home", str(self.home.absolute())]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=os.environ | BRIEF, stdout=output, stderr=output, start_new_session=True
            )


class Faults:
    """Kills of the parts, which are started again at once."""

    def __init__(self, running: SinkHome | SparkHome, broker: KafkaBroker, weights: dict[str, int]) -> None:
        """Kill the parts in `weights`, each with this probability."""
        self.running, self.broker, self._weights = running, broker, weights
        self.kills: Counter[str] = Counter()
        self._starting: threading.Thread | None = None

    def kill_something(self, rng: random.Random) -> None:
        name = rng.choices(list(self._weights), list(self._weights.values()))[0]
        kill: Callable[[], bool] = getattr(self, f"_kill_{name}")
        self.kills[name] += kill()

    def settle(self) -> None:
        """Wait until the broker runs."""
        if self._starting is not None:
            self._starting.join()

    def _kill_home(self) -> bool:
        self.running.require_running()
        self.running.kill()
        self.running.start()
        return True

    def _kill_jvm(self) -> bool:
        """Kill Spark's JVM, if it runs; the home ends, and is started again."""
        pid = self.running.jvm_pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        assert self.running.process is not None
        assert self.running.process.wait(PATIENCE) != 0
        self.running.start()
        return True

    def _kill_capture(self) -> bool:
        pid = self.running.capture_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

    def _kill_broker(self) -> bool:
        """Kill the broker; meanwhile others may be killed, too."""
        if self._starting is not None and self._starting.is_alive():
            return False
        self.broker.kill()
        self._starting = threading.Thread(target=self.broker.start)
        self._starting.start()
        return True


@dataclass
class Bank:
    """The bank, its home with two sinks, and the broker."""

    database: Database
    home: Home
    faults: Faults

    def delivered(self) -> bool:
        """Whether all sinks have delivered what was committed before this call."""
        lsn = Lsn.parse(self.database.execute("SELECT pg_current_wal_lsn()::text")[0][0])
        self.faults.running.require_running()
        until(lambda: self.home.frontiers("bank").durable >= lsn, "capture")
        return all(sink.behind == 0 and sink.position is not None for sink in self.home.status().sinks)

    def wait_for_progress(self) -> None:
        """Wait until both sinks have delivered something."""
        before = self._positions()
        until(
            lambda: all(one != other for one, other in zip(self._positions(), before, strict=True)), "sinks to deliver"
        )

    def _positions(self) -> list[SinkProgress | None]:
        self.faults.running.require_running()
        return [sink_progress(self.home.path, sink, "bank") for sink in ("changes", "whole")]

    def values(self, topic: str) -> list[Any]:
        return [json.loads(found.value) for found in committed(self.faults.broker.bootstrap, topic) if found.value]


@contextmanager
def running_bank(folder: Path, database: Database, *, spark: bool) -> Iterator[Bank]:
    """Run a bank with a sink of each kind."""
    database.execute(SETUP)
    home = Home(folder / "home")
    home.create(database.url, "bank")
    if not spark:
        with home.run(MemoryTables(), print) as running:
            running.wait_live(PATIENCE)
    with start_kafka(folder / "broker", apart=True) as broker:
        options: dict[str, Any] = {"broker": broker.bootstrap, "format": "json", "snapshot": False, "partitions": 2}
        home.create_sink("changes", "bank", envelope="changes", topic_prefix="bank.", **options)
        home.create_sink("whole", "bank", envelope="transactions", topic="bank.all", **options)
        process = SparkHome(home.path, database.url) if spark else SinkHome(home.path, database.url)
        process.start()
        weights = {"home": 5, "capture": 4, "broker": 2} | ({"jvm": 8} if spark else {})
        faults = Faults(process, broker, weights)
        yield Bank(database, home, faults)
        faults.settle()
        if process.process is not None and process.process.poll() is None:
            process.kill()
        until(lambda: process.capture_pid() is None, "capture to end with the process that started it")


def wait_started(bank: Bank) -> None:
    catalog = Catalog(catalog_path(bank.home.path))

    def is_started() -> bool:
        bank.faults.running.require_running()
        return all(record.started for record in catalog.sinks.all())

    until(is_started, "the sinks to start")


@pytest.mark.timeout(KILLS * 20 + 900)
def test_kills_lose_repeat_and_split_nothing(tmp_path: Path, database: Database) -> None:
    with running_bank(tmp_path, database, spark=False) as bank:
        kill_and_check(bank, KILLS)


@pytest.mark.timeout(SPARK_KILLS * 60 + 900)
def test_kills_with_spark(tmp_path: Path, database: Database) -> None:
    with running_bank(tmp_path, database, spark=True) as bank:
        kill_and_check(bank, SPARK_KILLS)


def kill_and_check(bank: Bank, kills: int) -> None:
    """Kill parts under load, then compare topics with the database."""
    rng, faults = random.Random(SEED), bank.faults
    wait_started(bank)
    load = Load(bank.database)
    try:
        while faults.kills.total() < kills:
            if rng.random() < SHARE_AT_WORK:
                bank.wait_for_progress()
            time.sleep(rng.uniform(0, 0.5))  # any time: during start, inside transactions, between them
            faults.kill_something(rng)
    finally:
        faults.settle()
        load.stop()
    until(bank.delivered, "the sinks to deliver everything")
    transfers = bank.database.execute("SELECT xid, payer, payee, amount, id FROM transfers")
    wanted = {(xid, "transfers", number) for xid, _, _, _, number in transfers}
    counters = dict(bank.database.execute("SELECT id, counter FROM accounts"))
    check_changes(bank, wanted, counters, Counter(t[0] for t in transfers))
    check_transactions(bank, wanted, counters)
    print(f"{dict(faults.kills)} kills, {len(transfers)} transfers")


def check_changes(
    bank: Bank, wanted: set[tuple[int, str, int]], counters: dict[int, int], sizes: dict[int, int]
) -> None:
    """Check the topics of tables: each change once, each account in order, each transaction whole."""
    transfers, accounts = bank.values("bank.public.transfers"), bank.values("bank.public.accounts")
    found = [(change["xid"], "transfers", change["after"]["id"]) for change in transfers]
    assert len(found) == len(set(found)) and set(found) == wanted
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for change in accounts:
        seen[change["after"]["id"]].append(change["after"]["counter"])
    assert seen == {number: list(range(1, last + 1)) for number, last in counters.items() if last}
    positions: defaultdict[str, set[int]] = defaultdict(set)
    changes: Counter[int] = Counter()
    for change in transfers + accounts:
        positions[change["position"]].add(change["xid"])
        changes[change["xid"]] += 1
    assert all(len(xids) == 1 for xids in positions.values())
    assert changes == {xid: 3 * size for xid, size in sizes.items()}


def check_transactions(bank: Bank, wanted: set[tuple[int, str, int]], counters: dict[int, int]) -> None:
    """Check the topic of transactions: one message each, after which the sum of all accounts is the same."""
    messages = bank.values("bank.all")
    assert all(message["part"] == 1 and message["last"] for message in messages)
    xids = [message["xid"] for message in messages]
    assert len(xids) == len(set(xids)) and set(xids) == {xid for xid, _, _ in wanted}
    messages.sort(key=lambda message: Lsn.parse(message["position"]))  # two partitions
    balances, last = dict.fromkeys(counters, OPENING), dict.fromkeys(counters, 0)
    for message in messages:
        for change in message["changes"]:
            if change["table"] == "public.accounts":
                after = change["after"]
                assert after["counter"] == last[after["id"]] + 1
                balances[after["id"]], last[after["id"]] = after["balance"], after["counter"]
        assert sum(balances.values()) == ACCOUNTS * OPENING, message["position"]
    assert last == counters
