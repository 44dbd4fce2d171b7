"""Sources other than databases in a running home: created by SQL, read live and as of the past, retried on error."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.engine.example_kinds import EXAMPLES, installed

from penstock.engine.runner import HomeRunner
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.home import Home
from penstock.live import Live
from penstock.positions import Lsn
from penstock.sql.show_statements import Answer
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until


@contextmanager
def running_home(
    home: Home, spark: SparkSession | TableStore, reported: list[str] | None = None
) -> Iterator[HomeRunner]:
    with home.run(spark, None if reported is None else reported.append) as runner:
        runner.wait_live(PATIENCE)
        yield runner


def read(home: Home, spark: SparkSession, table: str, **options: str) -> DataFrame:
    given = {"home": str(home.path), "source": table.partition(".")[0], "table": table, **options}
    return spark.read.format("penstock").options(**given).load()


def state(home: Home, table: str) -> str:
    return next(t.state for source in home.status().sources for t in source.tables if t.name == table)


def leftover_files(home: Home, source: str) -> list[str]:
    """The files of a source in its home, without lock files, which cannot be removed safely."""
    found = [path.relative_to(home.path) for path in home.path.rglob("*") if source in path.name]
    return [str(path) for path in found if path.parts[0] != "run"]


@pytest.mark.deep
def test_generated_bank(tmp_path: Path, spark: SparkSession) -> None:
    home = Home(tmp_path / "home")
    statement = "CREATE SOURCE bank FROM LOAD GENERATOR BANK WITH (rate = 100, seed = 3, accounts = 50)"
    explained = home.sql(f"EXPLAIN {statement}")
    assert isinstance(explained, Answer)
    assert "bank.accounts" in repr(explained)
    assert home.sources() == []
    home.sql(statement)
    assert " ".join(home.statement("bank").split()) == (
        "CREATE SOURCES bank FROM LOAD GENERATOR BANK WITH ( rate = 100.0, seed = 3, accounts = 50 );"
    )
    reported: list[str] = []
    with running_home(home, spark, reported) as runner:
        first = home.live(spark)
        until(lambda: home.frontiers("bank").durable > first.position + 100, "new transfers")
        os.kill(runner.capture_pids()["bank"], signal.SIGKILL)
        reached = home.frontiers("bank").durable
        until(lambda: home.frontiers("bank").durable > reached + 50, "new transfers after a kill")
        home.sql("ALTER SOURCE bank SET (rate = 5)")
        until(lambda: any("changed options" in line for line in reported), "capture to resume with the changed rate")
        for live in (first, home.live(spark)):
            transfer_count = "(SELECT count(id) FROM bank.transfers)"
            (row,) = live.sql(f"SELECT count(*), sum(balance), {transfer_count} FROM bank.accounts").collect()
            assert tuple(row) == (50, 50_000, live.position - 1)
        line = read(home, spark, "bank.accounts", rows="updates", startingPosition="0/0", endingPosition="0/50")
        assert line.selectExpr("sum(_diff * balance)").collect()[0][0] == 50_000
        assert read(home, spark, "bank.transfers", rows="live", asOf="0/20").count() == 0x20 - 1
        transactions = home.tail("bank", start="earliest")
        assert [next(transactions).lsn for _ in range(3)] == [1, 2, 3]
        transactions.close()

        (status,) = home.status().sources
        assert (status.kind, status.at, status.lag_bytes) == ("LOAD GENERATOR", "a generated bank, seed 3", None)
        assert {table.state for table in status.tables} == {"live"}
        assert "penstock" in home.metrics()
        assert home.check("bank").ready
        for call in (
            lambda: home.verify(spark, "bank"),
            lambda: home.sql("VERIFY bank"),
            lambda: home.repair("bank", "accounts", everything=True, spark=spark),
            lambda: home.add_table("bank", "bank.other"),
            lambda: home.drop_table("bank", "accounts"),
        ):
            with pytest.raises(UsageError, match="source bank is of kind LOAD GENERATOR"):
                call()
        with pytest.raises(UsageError, match="cannot be captured again individually") as caught:
            home.retry("bank", "accounts")
        assert "penstock drop bank" in caught.value.hint
        assert state(home, "bank.accounts") == "live"


def test_folder_fails_with_an_error_and_recovers_by_retry(tmp_path: Path, in_process: None) -> None:
    check_folder_error_and_retry(tmp_path, MemoryTables())


@pytest.mark.deep
def test_folder_fails_with_an_error_and_recovers_by_retry_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    check_folder_error_and_retry(tmp_path, SparkTables(spark))


def check_folder_error_and_retry(tmp_path: Path, store: TableStore) -> None:
    home, folder = Home(tmp_path / "home"), tmp_path / "events"
    folder.mkdir()
    home.sql(
        f"CREATE SOURCE events FROM FILE PATH '{folder}' FORMAT JSON KEY (id) COLUMNS (id bigint, name string)"
        " WITH (poll interval = '50 ms')",
    )
    home.sql("CREATE SOURCE bank FROM LOAD GENERATOR BANK WITH (transactions = 20, accounts = 10)")
    with running_home(home, store):
        (folder / "1.json").write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
        until(lambda: home.frontiers("events").durable == 1, "the first file")
        between = datetime.now(UTC)
        until(lambda: home.frontiers("events").passed > between, "time to pass without a file")
        (folder / "2.json").write_text('{"id": 2, "name": "c"}\n{"id": 3, "name": "d"}\n')
        until(lambda: home.frontiers("events").durable == 2, "the second file")
        assert rows_of(home.live(store)) == [(1, "a"), (2, "c"), (3, "d")]
        earlier = home.live(store, between, wait=PATIENCE)
        assert rows_of(earlier) == [(1, "a"), (2, "b")]
        if isinstance(store, SparkTables):
            joined = "SELECT e.name FROM events.events e JOIN bank.accounts a ON e.id = a.id ORDER BY 1"
            assert [name for (name,) in home.live(store).sql(joined).collect()] == ["a", "c", "d"]

        (folder / "3.json").write_text('{"id": 4}\n{"id": "secret"}\n')
        until(lambda: state(home, "events.events") == "failed", "the error in the status")
        with pytest.raises(DefiniteError, match=r"line 2 of file 3\.json") as caught:
            home.live(store).table("events.events")
        assert "secret" not in json.dumps(home.status().as_json()) + str(caught.value)
        assert len(rows_of(home.live(store, {"events": Lsn(2)}))) == 3
        assert len(rows_of(home.live(store), "bank.accounts")) == 10

        (folder / "3.json").write_text('{"id": 4}\n{"id": 2, "name": "e"}\n')
        home.sql(caught.value.hint.partition("again: ")[2])
        until(lambda: state(home, "events.events") == "live", "the table to recover")
        until(lambda: home.frontiers("events").durable == 6, "all files to be read again")
        assert rows_of(home.live(store)) == [(1, "a"), (2, "e"), (3, "d"), (4, None)]
    home.sql("DROP SOURCE events; DROP SOURCE bank")
    assert leftover_files(home, "events") == leftover_files(home, "bank") == []
    assert home.sources() == []
    assert sorted(path.name for path in folder.iterdir()) == ["1.json", "2.json", "3.json"]


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example package of a third-party source kind, installed on the Python path."""
    with installed("penstock-outbox", tmp_path / "installed", monkeypatch):
        yield


def test_third_party_source_kind_is_installed_and_used(tmp_path: Path, spark: SparkSession, outbox: None) -> None:
    home, file = Home(tmp_path / "home"), tmp_path / "app.db"
    statement = f"CREATE SOURCE mail FROM SQLITE OUTBOX PATH '{file}' WITH (poll interval = '50 ms')"
    with pytest.raises(TransientError, match="could not read"):
        home.sql(statement)
    assert home.sources() == []
    with closing(sqlite3.connect(file)) as app:
        app.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, body BLOB, cost REAL)")
        app.execute("INSERT INTO outbox (topic, body) VALUES ('a', x'01'), ('b', NULL)")
        app.commit()
        home.sql(statement)
        with running_home(home, spark):
            until(lambda: home.frontiers("mail").durable == 1, "the existing rows")
            app.execute("INSERT INTO outbox (topic, cost) VALUES ('c', 1.5)")
            app.commit()
            until(lambda: home.frontiers("mail").durable == 2, "the new row")
            found = home.live(spark).sql("SELECT * FROM mail.outbox ORDER BY id").collect()
            assert [tuple(row) for row in found] == [
                *((1, "a", bytearray(b"\x01"), None), (2, "b", None, None), (3, "c", None, 1.5)),
            ]
            assert read(home, spark, "mail.outbox", startingPosition="0/1").select("_op").collect() == [("insert",)]
            (status,) = home.status().sources
            assert (status.kind, status.at) == ("SQLITE OUTBOX", f"{file}, table outbox")
            assert [(table.name, table.state) for table in status.tables] == [("mail.outbox", "live")]
            for call in (lambda: home.verify(spark, "mail"), lambda: home.repair("mail", "outbox", keys=[1])):
                with pytest.raises(UsageError, match="source mail is of kind SQLITE OUTBOX"):
                    call()
    assert leftover_files(home, "mail") != []
    assert home.drop("mail") == []
    assert leftover_files(home, "mail") == []
    assert home.sources() == []


def test_example_package_is_small() -> None:
    (module,) = (EXAMPLES / "penstock-outbox").rglob("*.py")
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 100


def rows_of(live: Live, table: str = "events.events") -> list[tuple[Any, ...]]:
    """The rows of a live table of any store, in order."""
    found: Any = live.table(table)
    read = found.toArrow() if isinstance(found, DataFrame) else found
    return sorted(tuple(row.values()) for row in read.to_pylist())
