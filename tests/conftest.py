"""Fixtures that tests of several layers share."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.spark.session import session
from penstock.testing.postgres import start_postgres
from tests.longest_first import longest_first

os.environ.setdefault("PENSTOCK_APPLY_REST", "0.5")  # of tests, most of the rest would be spent waiting for it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order what is handed to workers."""
    if hasattr(config, "workerinput"):
        longest_first(items)


@dataclass(frozen=True)
class Database:
    """A database of its own for one test, on the server that all tests share."""

    server: EmbeddedPostgres
    name: str

    @property
    def url(self) -> str:
        """For the superuser, without a password."""
        return self.server.url_for(self.name)

    def version(self) -> int:
        """Return the server's major version."""
        return int(self.execute("SHOW server_version_num")[0][0]) // 10_000

    def needs(self, version: int, what: str) -> None:
        """Skip the test where this server is older than a major version."""
        if self.version() < version:
            pytest.skip(f"{what}: Postgres {version} or newer")

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect, with autocommit unless `options` say otherwise."""
        return psycopg.connect(self.url, **{"autocommit": True, **options})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL, committed at once; return the rows, if any."""
        return self.server.execute(statement, self.name)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for the whole run, in which much is left behind: it has more room than others."""
    running = session("penstock-tests", config={"spark.driver.memory": "4g"})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """One Postgres of the version asked for, for the whole run. Tests that stop or reconfigure one start their own."""
    with start_postgres(fsync=False, settings={"max_prepared_transactions": "10"}) as server:
        yield server


@pytest.fixture
def database(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database."""
    with made_database(postgres_server) as made:
        yield made


@contextmanager
def made_database(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    """Make a database; drop it afterwards, with the replication slots that were left in it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres_server.create_database(name)
    yield Database(postgres_server, name)
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        _drop_slots(connection, name)
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _drop_slots(connection: psycopg.Connection[tuple[Any, ...]], database: str) -> None:
    """Drop all slots of a database; a session that still uses one is ended."""
    give_up = time.monotonic() + 60
    query = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
    while slots := connection.execute(query, [database]).fetchall():
        for slot, pid in slots:
            try:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
