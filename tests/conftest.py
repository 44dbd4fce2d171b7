"""Fixtures that tests of several layers share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.spark.session import session
from penstock.testing.postgres import start_postgres
from penstock.testing.thread_capture import ThreadCapture
from penstock.testing.waiting import until
from tests.facing_postgres import FACING_POSTGRES, faces_postgres
from tests.lanes import LaneNames, Lanes, divide
from tests.seeds import EXPLORE
from tests.servers import PLUGIN, ServerClient, ServerOwner, SharedBroker, SharedRegistry, servers_of
from tests.time_budget import TimeBudget, skip_after_deadline

LANES = "penstock-lanes"

os.environ.setdefault("PENSTOCK_APPLY_REST", "0.5")  # of tests, most of the rest would be spent waiting for it

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not EXPLORE
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Offer the servers that the workers of a run share; report what the run spent its time on."""
    config.pluginmanager.register(servers_of(config), PLUGIN)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeBudget())
        config.pluginmanager.register(LaneNames(), LANES)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run on another version of Postgres leave out what does not depend on it."""
    parser.addoption(FACING_POSTGRES, action="store_true", help="run only the tests that talk to a Postgres server")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for; divide the rest into lanes, for workers."""
    if config.getoption(FACING_POSTGRES):
        items[:] = [item for item in items if faces_postgres(item)]
    if hasattr(config, "workerinput"):
        divide(items, Path(config.workerinput["lanes"]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no test of the deep tier, and none on another version of Postgres, after the deadline of the run."""
    if item.get_closest_marker("deep") or item.config.getoption(FACING_POSTGRES):
        skip_after_deadline()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """Hand out lanes; other ways to divide a run are those of xdist."""
    names = config.pluginmanager.get_plugin(LANES)
    return Lanes(config, log, names) if config.getoption("dist") == "loadfile" and names is not None else None


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


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Let homes that run in this process look, rest and retry more often: tests would wait for little else."""
    from penstock.engine import capture_process, error_policy, runner, table_loops

    pauses = (
        (runner, "_LOOK_AFTER_SECONDS", 0.2),
        (table_loops, "_RETRY_SECONDS", 0.5),
        (table_loops, "_LOOK_SECONDS", 0.1),
        (error_policy, "_FIRST_PAUSE", 0.05),
        (capture_process, "_LOOK_SECONDS", 0.1),
    )
    with pytest.MonkeyPatch.context() as patch:
        for module, name, seconds in (
            *pauses,
            (table_loops, "_ERRORS_SECONDS", 0.5),
            (table_loops, "_SHORTEST_PAUSE", 0.2),
        ):
            patch.setattr(module, name, seconds)
        yield


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let homes capture in a thread: quicker to start than a process, for tests that do not kill it."""
    monkeypatch.setattr("penstock.engine.source_runner.CaptureSupervisor", ThreadCapture)


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


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> SharedBroker:
    """One Kafka broker for the whole run, all workers included: tests have topics of their own, named by `unique`."""
    handle = _shared("broker", pytestconfig, tmp_path_factory)
    assert isinstance(handle, SharedBroker)
    return handle


@pytest.fixture(scope="session")
def registry(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> SharedRegistry:
    """One schema registry for the whole run, all workers included: tests have subjects of their own."""
    handle = _shared("registry", pytestconfig, tmp_path_factory)
    assert isinstance(handle, SharedRegistry)
    return handle


def _shared(name: str, config: pytest.Config, folders: pytest.TempPathFactory) -> object:
    plugin: ServerOwner | ServerClient | None = config.pluginmanager.get_plugin(PLUGIN)
    assert plugin is not None
    return plugin.handle(name, folders.mktemp(name))


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
    try:
        yield Database(postgres_server, name)
    finally:
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            _drop_slots(connection, name)
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _drop_slots(connection: psycopg.Connection[tuple[Any, ...]], database: str) -> None:
    """Drop all slots of a database; a session that still uses one is ended."""
    query = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"

    def dropped() -> bool:
        slots = connection.execute(query, [database]).fetchall()
        for slot, pid in slots:
            with suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        return not slots

    until(dropped, f"the slots of {database} to be free")
