"""What a home logs while rows fail and connections are refused: never a row value, never a secret. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException, PythonException
from tests.conftest import Database

from penstock.errors import PenstockError
from penstock.event_log import log_event, open_event_log
from penstock.home import Home
from penstock.layout import event_log_path
from penstock.sources.postgres.connection import connection_error, error_text
from penstock.spark.worker_errors import brief
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

CANARY = "canary4711"


def events(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in event_log_path(home).read_text().splitlines()]


def test_rows_that_fail_are_not_in_the_log(
    tmp_path: Path, database: Database, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply gets errors that quote rows, as Spark's do; another table fails at a value that cannot be stored."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE days (id int PRIMARY KEY, d date)"
    )
    home, store = Home(tmp_path / "home"), MemoryTables()
    home.create(database.url, "shop")
    errors: list[Exception] = [
        ValueError(f"could not convert {CANARY}"),
        PySparkException(f"[CAST_INVALID_INPUT] The value '{CANARY}' cannot be cast"),
        PythonException(f'File "x.py", line 3, in f\nValueError: {CANARY}'),
    ]
    net_change = store.net_change

    def failing(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return net_change(*arguments)

    with open_event_log(home.path, "debug"), home.run(store, log_event) as running:
        running.wait_live()
        monkeypatch.setattr(store, "net_change", failing)
        database.execute(f"INSERT INTO orders VALUES (1, '{CANARY}'); INSERT INTO days VALUES (1, 'infinity')")
        until(lambda: any(event["event"] == "table_failed" for event in events(home.path)), "the failed table")
        until(lambda: not errors, "all errors of apply")
        until(lambda: any(table.behind == 0 for table in home.status().sources[0].tables), "apply")
    text = event_log_path(home.path).read_text() + json.dumps(home.status().as_json())
    assert CANARY not in text
    logged = events(home.path)
    assert {event["table"] for event in logged if event["event"] == "table_failed"} == {"public.days"}
    assert sum(event["event"] == "retrying" and event["level"] == "warning" for event in logged) == 3
    assert {event["event"] for event in logged} >= {"table_live", "table_failed", "retrying"}


def test_source_that_loses_its_connection_is_one_event_and_its_return_another(
    tmp_path: Path, database: Database, in_process: None
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with open_event_log(home.path), home.run(MemoryTables(), log_event) as running:
        running.wait_live()
        slots = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
        until(lambda: database.execute(f"{slots} AND active"), "the stream")
        until(lambda: "source_resumed" in [event["event"] for event in events(home.path)], "capture to reconnect")
    found = [event for event in events(home.path) if event["event"].startswith("source_")]
    assert [event["event"] for event in found][:2] == ["source_error", "source_resumed"]
    assert (found[0]["source"], found[0]["level"]) == ("shop", "warning")


QUOTING = [
    f"SELECT '{CANARY}'::int",
    f"CREATE TEMP TABLE t (note text PRIMARY KEY); INSERT INTO t VALUES ('{CANARY}'), ('{CANARY}')",
    f"CREATE TEMP TABLE c (note text CHECK (note = '')); INSERT INTO c VALUES ('{CANARY}')",
]


@pytest.mark.parametrize("statement", QUOTING)
def test_postgres_errors_are_described_without_values(database: Database, statement: str) -> None:
    with database.connect() as connection, pytest.raises(psycopg.Error) as raised:
        connection.execute(statement)
    assert CANARY in str(raised.value)
    assert CANARY not in error_text(raised.value) + str(connection_error(raised.value, database.url))


def test_other_postgres_errors_keep_their_message(database: Database) -> None:
    with database.connect() as connection, pytest.raises(psycopg.Error) as raised:
        connection.execute("SELECT * FROM missing")
    assert error_text(raised.value) == 'relation "missing" does not exist'


def test_connection_strings_are_not_in_errors(tmp_path: Path, database: Database) -> None:
    refused: list[Callable[[], object]] = [
        lambda: Home(tmp_path / "a").create(f"postgresql://nobody:{CANARY}@127.0.0.1:1/shop"),
        lambda: Home(tmp_path / "b").create(f"{database.url.replace('@', f':{CANARY}@')}_missing"),
    ]
    with open_event_log(tmp_path):
        for create in refused:
            with pytest.raises(PenstockError) as raised:
                create()
            log_event(str(raised.value))
    assert len(events(tmp_path)) == 2
    assert CANARY not in event_log_path(tmp_path).read_text()


def test_errors_of_spark_are_described_without_values() -> None:
    assert brief(PySparkException(f"value {CANARY}")) == "PySparkException"
    assert brief(PythonException(f'File "x.py", line 3, in f\nValueError: {CANARY}')) == "ValueError at x.py:3"
    assert brief(ValueError(CANARY)) == "ValueError"
