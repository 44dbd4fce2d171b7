"""The supervisor of a home: a lost Spark is restarted, and capture does not notice. Without Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Database

from penstock.engine import supervisor as module
from penstock.engine.run_state import read_run_state
from penstock.engine.supervisor import Supervisor
from penstock.errors import DefiniteError, TransientError
from penstock.home import Home
from penstock.layout import process_path
from penstock.testing.losable_spark import LosableSpark
from penstock.testing.waiting import until

SETUP = "CREATE TABLE orders (id int PRIMARY KEY, note text)"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.05)


class Supervised:
    """A home with source `shop`, and what its supervisor reported."""

    def __init__(self, path: Path, database: Database) -> None:
        database.execute(SETUP)
        self.home, self.database, self.spark, self.reported = Home(path), database, LosableSpark(), list[str]()
        self.home.create(database.url, "shop")

    @contextmanager
    def run(self) -> Iterator[Supervisor]:
        with self.home.supervise(self.reported.append, spark=self.spark) as running:
            yield running

    def count(self) -> int:
        table: Any = self.home.live(self.spark.tables).table("shop.orders")
        return int(table.num_rows)

    def applied(self) -> bool:
        """Whether apply has merged everything that was committed upstream."""
        (source,) = self.home.status().sources
        (table,) = source.tables
        return table.state == "live" and table.behind == 0

    def insert(self, first: int, last: int) -> None:
        self.database.execute(f"INSERT INTO orders SELECT n, 'note' FROM generate_series({first}, {last}) n")


@pytest.fixture
def supervised(tmp_path: Path, database: Database, in_process: None) -> Supervised:
    return Supervised(tmp_path / "home", database)


def is_running(running: Supervisor) -> bool:
    running.check()
    return running.state == "running"


def test_lost_spark_is_restarted_while_capture_continues(supervised: Supervised) -> None:
    with supervised.run() as running:
        until(lambda: is_running(running), "Spark")
        until(supervised.applied, "the initial snapshot")
        pids = running.capture_pids()
        supervised.spark.start_error = RuntimeError("no memory")
        supervised.spark.kill()
        until(lambda: supervised.spark.starts > 3, "restarts, which fail")
        assert running.state == "restarting Spark"
        supervised.insert(1, 100)
        until(lambda: supervised.count() == 100, "capture, without Spark")
        assert not supervised.applied()
        supervised.spark.start_error = None
        until(lambda: is_running(running), "Spark again")
        until(supervised.applied, "apply to resume")
        assert running.capture_pids() == pids
        assert running.restarts >= 3
    assert supervised.spark.discards >= 3
    assert [verdict.equal for verdict in verify(supervised)] == [True]


def verify(supervised: Supervised) -> list[Any]:
    with supervised.home.run(supervised.spark.tables):
        return supervised.home.verify(supervised.spark.tables, "shop")


def test_kills_at_any_moment_lose_nothing(supervised: Supervised) -> None:
    rng, kills = random.Random(21), 6
    with supervised.run() as running:
        for kill in range(kills):
            supervised.insert(kill * 10 + 1, kill * 10 + 10)
            operations = rng.randrange(40)
            for _ in range(operations):
                supervised.home.status()  # a few milliseconds each: any moment of snapshot and apply
            before = supervised.spark.starts
            supervised.spark.kill()
            until(lambda before=before: supervised.spark.starts > before, "the restart")  # type: ignore[misc]
        until(lambda: is_running(running), "Spark")
        until(lambda: supervised.applied() and supervised.count() == kills * 10, "apply")
        assert running.restarts == kills
    assert [verdict.equal for verdict in verify(supervised)] == [True]


def test_session_is_unavailable_during_a_restart(supervised: Supervised) -> None:
    with supervised.run() as running:
        until(lambda: is_running(running), "Spark")
        supervised.spark.start_error = RuntimeError("no memory")
        supervised.spark.kill()
        until(lambda: running.state == "restarting Spark", "the loss")
        with pytest.raises(TransientError, match="being started"):
            running.spark()


def test_permanent_error_of_the_first_start_ends_the_run(supervised: Supervised) -> None:
    supervised.spark.start_error = DefiniteError("Spark requires Java 17 or newer", "Install it.")
    with supervised.run() as running, pytest.raises(DefiniteError, match="Java 17"):
        until(lambda: is_running(running), "the error")
    assert supervised.spark.starts == 1


def test_repeated_failure_of_the_first_start_ends_the_run(supervised: Supervised) -> None:
    supervised.spark.start_error = RuntimeError("secret-row-value")
    with supervised.run() as running, pytest.raises(DefiniteError, match="RuntimeError at") as raised:
        until(lambda: is_running(running), "the error")
    assert supervised.spark.starts == 3
    assert "secret-row-value" not in f"{raised.value} {supervised.reported}"


def test_repeated_loss_is_an_alarm_in_the_status_of_other_processes(supervised: Supervised) -> None:
    with supervised.run() as running:
        for restarts in range(3):
            until(lambda: is_running(running), "Spark")
            found = read_run_state(supervised.home.path)
            assert found is not None
            assert found.alarm() is None
            supervised.spark.kill()
            until(lambda n=restarts: running.restarts > n, "the loss")  # type: ignore[misc]
        until(lambda: is_running(running), "Spark")
        process = supervised.home.status().process
        assert process is not None
        assert (process.state, process.restarts) == ("running", 3)
        assert process.alarm is not None
        assert "ended 3 times" in process.alarm
        assert process_path(supervised.home.path).stat().st_mode & 0o777 == 0o600
    assert read_run_state(supervised.home.path) is None
    assert supervised.home.status().process is None
    json.dumps(supervised.home.status().as_json())


def test_function_sink_resumes_with_the_next_spark(supervised: Supervised) -> None:
    """A sink that needs Spark is stopped with it; here it then fails, because these tables have no session."""
    supervised.home.sink("out", "shop.orders", lambda rows, first, last: None)
    with supervised.run() as running:
        until(lambda: supervised.home.status().sinks[0].state == "failed", "the sink to be started")
        supervised.spark.start_error = RuntimeError("no memory")
        supervised.spark.kill()
        until(lambda: running.state == "restarting Spark", "the loss")
        supervised.home.retry_sink("out")
        starts = supervised.spark.starts
        until(lambda: supervised.spark.starts > starts + 2, "some time without Spark")
        assert supervised.home.status().sinks[0].state == "running"  # not started: it would fail
        supervised.spark.start_error = None
        until(lambda: supervised.home.status().sinks[0].state == "failed", "the sink to be started again")


def test_session_of_the_user_is_not_restarted(supervised: Supervised) -> None:
    """`check` raises a transient error; the sources themselves have not failed, so a supervisor would continue."""
    with supervised.home.run(supervised.spark.start()) as running:
        running.wait_live()
        supervised.spark.kill()
        supervised.insert(1, 10)
        until(lambda: running.is_spark_lost, "the loss")
        with pytest.raises(TransientError, match="JVM has ended"):
            running.check()
        running.check_sources()
        assert supervised.home.status().sources[0].error is None
        until(lambda: supervised.count() == 10, "capture, which continues")
