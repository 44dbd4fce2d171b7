"""Random DDL under load, while the home runs and while it is stopped: at the end, every table equals upstream.

`PENSTOCK_DDL_ROUNDS` is the number of rounds, each of which runs the home and stops it again. The number of tables that
stopped, and were captured again, is printed: none of them is lost, but each of them costs a snapshot.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.engine import changed_tables
from penstock.event_log import Event
from penstock.home import Home
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

ROUNDS = int(os.environ.get("PENSTOCK_DDL_ROUNDS", "3"))
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "0"))
TABLES = ("keyed", "whole", "bag")
SETUP = "".join(
    f"CREATE TABLE {name} (id int {key}, n int NOT NULL DEFAULT 0, code varchar(5), body text, flag int, spare text);"
    f"ALTER TABLE {name} REPLICA IDENTITY {identity};"
    f"INSERT INTO {name} SELECT i, i, 'c', repeat('b', i * 500), i, 's' FROM generate_series(1, 20) i;"
    for name, key, identity in (
        ("keyed", "PRIMARY KEY", "DEFAULT"),
        ("whole", "PRIMARY KEY", "FULL"),
        ("bag", "", "FULL"),
    )
)
FOLLOWED = (
    "RENAME COLUMN {column} TO r{n}",
    "ADD COLUMN c{n} int DEFAULT {n}",
    "ADD COLUMN c{n} text",
    "DROP COLUMN {column}",
    "ALTER code TYPE varchar({long})",
    "ALTER code TYPE text",
    "ALTER n SET DEFAULT {n}",
    "ALTER flag SET NOT NULL",
    "ADD CHECK (n >= 0)",
)
RESNAPSHOTTED = (
    "ALTER flag TYPE bigint",
    "ALTER code TYPE varchar({long}) USING upper(code)",
    "DROP COLUMN {column}, ADD COLUMN d{n} text",
    "ADD COLUMN e{n} float DEFAULT random()",
)


class Upstream:
    """Alters and writes tables at random; Postgres may reject a statement."""

    def __init__(self, database: Any, seed: int) -> None:
        self.database = database
        self.random = random.Random(seed)
        self.number = 0
        self.done: list[str] = []

    def alter(self) -> None:
        self.number += 1
        table = self.random.choice(TABLES)
        query = (
            f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 2 AND NOT attisdropped"
        )
        column = self.random.choice([name for (name,) in self.database.execute(query)])
        ddl = self.random.choice(FOLLOWED if self.random.random() < 0.7 else RESNAPSHOTTED)
        self.execute(f"ALTER TABLE {table} " + ddl.format(n=self.number, column=column, long=5 + self.number))

    def write(self) -> None:
        table, n = self.random.choice(TABLES), self.random.randrange(20)
        inserted = f"INSERT INTO {table} (id) SELECT coalesce(max(id), 0) + 1 FROM {table}"
        updated = f"UPDATE {table} SET n = n + 1 WHERE id % 20 = {n}"
        deleted = f"DELETE FROM {table} WHERE id % 40 = {n}"
        self.execute(self.random.choice((inserted, updated, updated, deleted)))

    def execute(self, statement: str) -> None:
        self.done.append(statement)
        with suppress(psycopg.Error):
            self.database.execute(statement)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Change rows of all tables in a thread."""
        stop = threading.Event()

        def write() -> None:
            with self.database.connect() as connection:
                while not stop.wait(0.02):
                    for table in TABLES:
                        connection.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 7 = 3")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.mark.deep
def test_tables_equal_upstream_after_random_ddl(
    database: Any, tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_tables, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(changed_tables, "_LONGEST_PAUSE", 0.5)
    database.execute(SETUP)
    home, store, upstream, reported = Home(tmp_path / "home"), MemoryTables(), Upstream(database, SEED), list[str]()
    home.create(database.url, "shop", on_schema_change="resnapshot")
    try:
        for _ in range(ROUNDS):
            with home.run(store, reported.append), upstream.load():
                for _ in range(4):
                    upstream.alter()
                    upstream.write()
            for _ in range(2):
                upstream.alter()
                upstream.write()
        for table in TABLES:
            upstream.execute(f"UPDATE {table} SET n = n + 1")
        with home.run(store, reported.append):
            until(lambda: _is_equal(home, store), "all tables to be live and equal to upstream")
    except BaseException as error:
        error.add_note("\n".join(upstream.done))
        raise
    home.drop("shop")
    again = [each for each in reported if isinstance(each, Event) and each.name == "table_resnapshotted"]
    altered = sum(statement.startswith("ALTER") for statement in upstream.done)
    print(f"seed {SEED}: {altered} ALTER TABLE statements, {len(again)} tables stopped")


def _is_equal(home: Home, store: MemoryTables) -> bool:
    """Whether all tables are live and equal; a table that is live and differs never becomes equal."""
    (source,) = home.status().sources
    if {table.state for table in source.tables} != {"live"}:
        return False
    verdicts = home.verify(store, "shop")
    if any(verdict.error is not None for verdict in verdicts):
        return False
    assert all(verdict.equal for verdict in verdicts), [verdict.table for verdict in verdicts if not verdict.equal]
    return True
