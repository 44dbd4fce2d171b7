"""What every kind of database source must do, tested on Postgres and on the example kind for SQLite.

A bank under load: transfers move money between accounts, so that every consistent read has the same sum.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.engine.example_kinds import EXAMPLES, installed
from tests.lanes import LANE

from penstock.engine.runner import HomeRunner
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home, check_target
from penstock.layout import base_path
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

ACCOUNTS, TOTAL = 40, 40_000
QUIET = ACCOUNTS - 1
"""The account and the note that the load does not change."""
TABLES = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER)",
    "CREATE TABLE transfers (bank TEXT, number INTEGER, amount INTEGER, PRIMARY KEY (bank, number))",
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, line TEXT)",
)


class Upstream(Protocol):
    """A database of some kind."""

    def create(self, home: Home, *, chunked: bool) -> None:
        """Create the source `bank`."""

    def connect(self) -> Any:
        """Return a connection with `execute` and `commit`."""

    def objects(self) -> set[str]:
        """Return the names of objects that Penstock created and has not removed."""


class PostgresUpstream:
    """A Postgres database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self, home: Home, *, chunked: bool) -> None:
        home.create(self.url, "bank", snapshot="chunked" if chunked else "parallel", chunk_rows=100)

    def connect(self) -> Any:
        return psycopg.connect(self.url)

    def objects(self) -> set[str]:
        with closing(self.connect()) as connection:
            slots = connection.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
                " UNION ALL SELECT pubname FROM pg_publication"
            )
            return {name for (name,) in slots}


class SqliteUpstream:
    """A SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self.connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    def create(self, home: Home, *, chunked: bool) -> None:
        url = f"sqlite://{self.path}"
        assert check_target(home.path, url).ready
        assert home.create(url, chunked=chunked) == "bank"
        assert home.captures(url) == "bank"

    def connect(self) -> Any:
        return sqlite3.connect(self.path, timeout=PATIENCE)

    def objects(self) -> set[str]:
        with closing(self.connect()) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'penstock%'")
            return {name for (name,) in found}


@pytest.fixture
def upstream(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """The database with the tables of the bank, filled."""
    made: Upstream
    with installed("penstock-sqlite", tmp_path / "installed", monkeypatch):
        if request.param == "postgres":
            made = PostgresUpstream(request.getfixturevalue("database").url)
        else:
            made = SqliteUpstream(tmp_path / "bank.db")
        with closing(made.connect()) as connection:
            for statement in TABLES:
                connection.execute(statement)
            for number in range(ACCOUNTS):
                connection.execute(f"INSERT INTO accounts VALUES ({number}, 'o''wner {number}', {TOTAL // ACCOUNTS})")
                connection.execute(f"INSERT INTO notes VALUES ({number}, 'line {number}')")
            connection.commit()
        yield made


@contextmanager
def transfers(upstream: Upstream) -> Iterator[Callable[[], int]]:
    """Transfer money in a thread, and delete and move rows; yield a function that returns the number of transfers."""
    stop, done, errors = threading.Event(), [0], list[BaseException]()

    def work() -> None:
        with closing(upstream.connect()) as connection:
            (done[0],) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM transfers").fetchone()
            while not stop.is_set():
                number = done[0]
                one, other, amount = number % QUIET, (number * 7 + 3) % QUIET, number % 50
                for account, sign in ((one, "-"), (other, "+")):
                    connection.execute(f"UPDATE accounts SET balance = balance {sign} {amount} WHERE id = {account}")
                connection.execute(f"INSERT INTO transfers VALUES ('b', {number}, {amount})")
                connection.execute(f"DELETE FROM transfers WHERE number < {number - 20}")
                connection.execute(f"UPDATE notes SET id = {1000 + number} WHERE id = {number} AND id <> {QUIET}")
                connection.commit()
                done[0] += 1
                stop.wait(0.02)

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        stop.set()
        thread.join()
    assert errors == []


def balance(home: Home, store: TableStore) -> int:
    """Return the sum of all balances in the live table."""
    found: Any = home.live(store).table("bank.accounts")
    rows = found.toArrow() if isinstance(found, DataFrame) else found
    assert isinstance(rows, pa.Table)
    return sum(rows["balance"].to_pylist())


def differing(home: Home, store: TableStore) -> dict[str, list[dict[str, Any]]]:
    """Return the keys of differing rows by table, after all tables were compared."""
    verdicts = home.verify(store, "bank")
    assert {verdict.local: verdict.error for verdict in verdicts} == dict.fromkeys(("accounts", "transfers", "notes"))
    return {v.local: v.differences.keys for v in verdicts if v.differences and v.differences.count}


def until_transfers(done: Callable[[], int], more: int) -> None:
    target = done() + more
    until(lambda: done() >= target, "transfers")


def check_capture(upstream: Upstream, home: Home, store: TableStore, *, chunked: bool) -> None:
    """Snapshot under load, kill, stop, resume; every read is consistent, and verify finds no difference."""
    with transfers(upstream) as done:
        until_transfers(done, 5)
        upstream.create(home, chunked=chunked)
        with live(home, store) as running:
            assert balance(home, store) == TOTAL
            os.kill(running.capture_pids()["bank"], signal.SIGKILL)
            reached = home.frontiers("bank").durable
            until(lambda: home.frontiers("bank").durable > reached, "changes after the kill")
            assert balance(home, store) == TOTAL
            assert differing(home, store) == {}, "under load, at one position"
        until_transfers(done, 5)  # while nothing captures
        with live(home, store):
            assert balance(home, store) == TOTAL
    with live(home, store):
        assert differing(home, store) == {}


@contextmanager
def live(home: Home, store: TableStore) -> Iterator[HomeRunner]:
    with home.run(store, print) as running:
        running.wait_live(PATIENCE)
        yield running


def check_drop(upstream: Upstream, home: Home) -> None:
    """A drop leaves no object upstream."""
    assert upstream.objects() != set()
    home.drop("bank")
    assert upstream.objects() == set()
    assert home.sources() == []


KINDS = pytest.mark.parametrize("upstream", ["postgres", "sqlite"], indirect=True)


@pytest.mark.slow("starts and kills capture processes four times")
@pytest.mark.parametrize("upstream", ["postgres", pytest.param("sqlite", marks=pytest.mark.deep)], indirect=True)
def test_capture_verify_and_drop(upstream: Upstream, tmp_path: Path) -> None:
    home, store = Home(tmp_path / "home"), MemoryTables()
    check_capture(upstream, home, store, chunked=False)
    store.tamper(base_path(home.path, "bank", "accounts").absolute(), lambda rows: rows.slice(1))
    with live(home, store):
        assert [len(keys) for keys in differing(home, store).values()] == [1], "verify must find a missing row"
    check_drop(upstream, home)


@pytest.mark.parametrize("upstream", ["sqlite"], indirect=True)
def test_dropped_trigger_stops_the_tables(upstream: Upstream, tmp_path: Path, in_process: None) -> None:
    home = Home(tmp_path / "home")
    upstream.create(home, chunked=False)
    with live(home, MemoryTables()), closing(upstream.connect()) as connection:
        connection.execute("DROP TRIGGER penstock_notes_insert")
        connection.execute("INSERT INTO notes VALUES (5000, 'not captured')")
        connection.commit()
        until(lambda: {t.state for s in home.status().sources for t in s.tables} == {"failed"}, "the error")
        assert all("trigger was dropped" in (t.error or "") for s in home.status().sources for t in s.tables)


@pytest.mark.deep
@LANE
@pytest.mark.parametrize(
    ("upstream", "chunked"), [("postgres", False), ("sqlite", True)], indirect=["upstream"], ids=["postgres", "sqlite"]
)
def test_capture_repair_and_drop_in_spark(
    upstream: Upstream, tmp_path: Path, spark: SparkSession, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APPLY_REST", "3")  # the default: repairs and verify need the cores
    home, store = Home(tmp_path / "home"), SparkTables(spark)
    check_capture(upstream, home, store, chunked=chunked)
    with live(home, store), transfers(upstream):
        accounts, notes = (f"delta.`{base_path(home.path, 'bank', t).absolute()}`" for t in ("accounts", "notes"))
        until(lambda: committed(spark, f"UPDATE {accounts} SET owner = 'nobody' WHERE id = {QUIET}"), "a commit")
        until(lambda: committed(spark, f"DELETE FROM {notes} WHERE id = {QUIET}"), "a commit")
        assert differing(home, store) == {"accounts": [{"id": QUIET}], "notes": [{"id": QUIET}]}
        assert home.repair("bank", "accounts", keys=[QUIET]).rows_changed == 1
        assert home.repair("bank", "notes", everything=True).rows_changed == 1
        assert home.repair("bank", "accounts", where=f"id = {QUIET} OR id = 4").rows_read == 2
        with pytest.raises((UsageError, DefiniteError), match=r"rejects this condition|condition"):
            home.repair("bank", "accounts", where="no such column")
        assert differing(home, store) == {}
    check_drop(upstream, home)


def committed(spark: SparkSession, statement: str) -> bool:
    """Change a base table without Penstock; return False if apply has committed meanwhile."""
    try:
        spark.sql(statement)
    except Exception as error:
        if "Concurrent" not in type(error).__name__ and "DELTA_CONCURRENT" not in str(error):
            raise
        return False
    return True


def test_example_is_small() -> None:
    (module,) = (EXAMPLES / "penstock-sqlite").rglob("*.py")
    code = [line for line in module.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(code) <= 250
