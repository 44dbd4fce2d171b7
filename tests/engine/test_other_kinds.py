"""Sources that are no database, in a home at work: made by SQL, read live and in the past; ended and begun anew."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock.sources.kinds
from penstock.engine.runner import Running
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.home import Home
from penstock.live import Live
from penstock.positions import Lsn
from penstock.sql.answer import Answer
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "penstock-outbox"


@contextmanager
def running(home: Home, spark: SparkSession | TableStore, said: list[str] | None = None) -> Iterator[Running]:
    with home.run(spark, None if said is None else said.append) as ran:
        ran.wait_live(PATIENCE)
        yield ran


def read(home: Home, spark: SparkSession, table: str, **options: str) -> DataFrame:
    given = {"home": str(home.path), "source": table.partition(".")[0], "table": table, **options}
    return spark.read.format("penstock").options(**given).load()


def state(home: Home, table: str) -> str:
    return next(t.state for source in home.status().sources for t in source.tables if t.name == table)


def left(home: Home, source: str) -> list[str]:
    """What there is of a source in its home, but for the files of locks, which nobody can remove safely."""
    found = [path.relative_to(home.path) for path in home.path.rglob("*") if source in path.name]
    return [str(path) for path in found if path.parts[0] != "run"]


@pytest.mark.deep
def test_a_generated_bank_is_a_source_like_any_other(tmp_path: Path, spark: SparkSession) -> None:
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
    said: list[str] = []
    with running(home, spark, said) as ran:
        first = home.live(spark)
        until(lambda: home.frontiers("bank").durable > first.position + 100, "the bank goes on")
        os.kill(ran.capture_pids()["bank"], signal.SIGKILL)
        reached = home.frontiers("bank").durable
        until(lambda: home.frontiers("bank").durable > reached + 50, "the bank goes on after a kill")
        home.sql("ALTER SOURCE bank SET (rate = 5)")
        until(lambda: any("other options" in told for told in said), "it goes on at another rate")
        for live in (first, home.live(spark)):
            made = "(SELECT count(id) FROM bank.transfers)"
            (row,) = live.sql(f"SELECT count(*), sum(balance), {made} FROM bank.accounts").collect()
            assert tuple(row) == (50, 50_000, live.position - 1)
        told = read(home, spark, "bank.accounts", rows="updates", startingPosition="0/0", endingPosition="0/50")
        assert told.selectExpr("sum(_diff * balance)").collect()[0][0] == 50_000
        assert read(home, spark, "bank.transfers", rows="live", asOf="0/20").count() == 0x20 - 1
        transactions = home.tail("bank", start="earliest")
        assert [next(transactions).lsn for _ in range(3)] == [1, 2, 3]
        transactions.close()

        (status,) = home.status().sources
        assert (status.kind, status.at, status.lag_bytes) == ("LOAD GENERATOR", "a generated bank, seed 3", None)
        assert {table.state for table in status.tables} == {"live"}
        assert "penstock" in home.metrics()
        assert home.check("bank").ready
        for refused in (
            lambda: home.verify(spark, "bank"),
            lambda: home.sql("VERIFY bank"),
            lambda: home.repair("bank", "accounts", everything=True, spark=spark),
            lambda: home.add_table("bank", "bank.other"),
            lambda: home.drop_table("bank", "accounts"),
        ):
            with pytest.raises(UsageError, match="source bank is of the kind LOAD GENERATOR"):
                refused()
        with pytest.raises(UsageError, match="made together") as caught:
            home.retry("bank", "accounts")
        assert "penstock drop bank" in caught.value.hint
        assert state(home, "bank.accounts") == "live"


def test_a_folder_ends_with_an_error_and_begins_anew(tmp_path: Path, in_process: None) -> None:
    a_folder_ends_with_an_error_and_begins_anew(tmp_path, MemoryTables())


@pytest.mark.deep
def test_a_folder_ends_with_an_error_and_begins_anew_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    a_folder_ends_with_an_error_and_begins_anew(tmp_path, SparkTables(spark))


def a_folder_ends_with_an_error_and_begins_anew(tmp_path: Path, store: TableStore) -> None:
    home, folder = Home(tmp_path / "home"), tmp_path / "events"
    folder.mkdir()
    home.sql(
        f"CREATE SOURCE events FROM FILE PATH '{folder}' FORMAT JSON KEY (id) COLUMNS (id bigint, name string)"
        " WITH (poll interval = '50 ms')",
    )
    home.sql("CREATE SOURCE bank FROM LOAD GENERATOR BANK WITH (transactions = 20, accounts = 10)")
    with running(home, store):
        (folder / "1.json").write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
        until(lambda: home.frontiers("events").durable == 1, "the first file")
        between = datetime.now(UTC)
        until(lambda: home.frontiers("events").passed > between, "a moment passes without a file")
        (folder / "2.json").write_text('{"id": 2, "name": "c"}\n{"id": 3, "name": "d"}\n')
        until(lambda: home.frontiers("events").durable == 2, "the second file")
        assert rows_of(home.live(store)) == [(1, "a"), (2, "c"), (3, "d")]
        earlier = home.live(store, between, wait=PATIENCE)
        assert rows_of(earlier) == [(1, "a"), (2, "b")]
        if isinstance(store, SparkTables):
            joined = "SELECT e.name FROM events.events e JOIN bank.accounts a ON e.id = a.id ORDER BY 1"
            assert [name for (name,) in home.live(store).sql(joined).collect()] == ["a", "c", "d"]

        (folder / "3.json").write_text('{"id": 4}\n{"id": "secret"}\n')
        until(lambda: state(home, "events.events") == "failed", "the error is known")
        with pytest.raises(DefiniteError, match=r"line 2 of the file 3\.json") as caught:
            home.live(store).table("events.events")
        assert "secret" not in json.dumps(home.status().as_json()) + str(caught.value)
        assert len(rows_of(home.live(store, {"events": Lsn(2)}))) == 3
        assert len(rows_of(home.live(store), "bank.accounts")) == 10

        (folder / "3.json").write_text('{"id": 4}\n{"id": 2, "name": "e"}\n')
        home.sql(caught.value.hint.partition("anew: ")[2])
        until(lambda: state(home, "events.events") == "live", "it begins anew")
        until(lambda: home.frontiers("events").durable == 6, "all files are read again")
        assert rows_of(home.live(store)) == [(1, "a"), (2, "e"), (3, "d"), (4, None)]
    home.sql("DROP SOURCE events; DROP SOURCE bank")
    assert left(home, "events") == left(home, "bank") == []
    assert home.sources() == []
    assert sorted(path.name for path in folder.iterdir()) == ["1.json", "2.json", "3.json"]


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example of a kind in a package of its own, installed where Python looks for packages."""
    installed = tmp_path / "installed"
    command = [*(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")]
    subprocess.run([*command, "--target", str(installed), str(EXAMPLE)], check=True, timeout=PATIENCE)
    monkeypatch.syspath_prepend(str(installed))
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    forget_kinds()
    yield
    forget_kinds()
    sys.modules.pop("penstock_outbox", None)


def forget_kinds() -> None:
    importlib.invalidate_caches()
    penstock.sources.kinds.kinds.cache_clear()
    penstock.sources.kinds._load.cache_clear()


def test_a_kind_of_others_is_installed_and_used(tmp_path: Path, spark: SparkSession, outbox: None) -> None:
    home, file = Home(tmp_path / "home"), tmp_path / "app.db"
    statement = f"CREATE SOURCE mail FROM SQLITE OUTBOX PATH '{file}' WITH (poll interval = '50 ms')"
    with pytest.raises(TransientError, match="cannot be read"):
        home.sql(statement)
    assert home.sources() == []
    with closing(sqlite3.connect(file)) as app:
        app.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, body BLOB, cost REAL)")
        app.execute("INSERT INTO outbox (topic, body) VALUES ('a', x'01'), ('b', NULL)")
        app.commit()
        home.sql(statement)
        with running(home, spark):
            until(lambda: home.frontiers("mail").durable == 1, "what was there")
            app.execute("INSERT INTO outbox (topic, cost) VALUES ('c', 1.5)")
            app.commit()
            until(lambda: home.frontiers("mail").durable == 2, "what came")
            found = home.live(spark).sql("SELECT * FROM mail.outbox ORDER BY id").collect()
            assert [tuple(row) for row in found] == [
                *((1, "a", bytearray(b"\x01"), None), (2, "b", None, None), (3, "c", None, 1.5)),
            ]
            assert read(home, spark, "mail.outbox", startingPosition="0/1").select("_op").collect() == [("insert",)]
            (status,) = home.status().sources
            assert (status.kind, status.at) == ("SQLITE OUTBOX", f"{file}, table outbox")
            assert [(table.name, table.state) for table in status.tables] == [("mail.outbox", "live")]
            for refused in (lambda: home.verify(spark, "mail"), lambda: home.repair("mail", "outbox", keys=[1])):
                with pytest.raises(UsageError, match="source mail is of the kind SQLITE OUTBOX"):
                    refused()
    assert left(home, "mail") != []
    assert home.drop("mail") == []
    assert left(home, "mail") == []
    assert home.sources() == []


def test_the_package_is_small() -> None:
    (module,) = EXAMPLE.rglob("*.py")
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 100


def rows_of(live: Live, table: str = "events.events") -> list[tuple[Any, ...]]:
    """The rows of a live table of any store, in order."""
    found: Any = live.table(table)
    read = found.toArrow() if isinstance(found, DataFrame) else found
    return sorted(tuple(row.values()) for row in read.to_pylist())
