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
from penstock.testing.kafka import has_openssl
from penstock.testing.postgres import start_postgres
from penstock.testing.thread_capture import ThreadCapture
from penstock.testing.waiting import until
from tests.lanes import LaneNames, Lanes, divide
from tests.postgres_only import POSTGRES_ONLY, VERSION_ONLY, needs_postgres, needs_version
from tests.seeds import EXPLORE
from tests.servers import PLUGIN, ServerClient, ServerOwner, SharedBroker, SharedRegistry, servers_of
from tests.time_budget import SharedSetup, TimeBudget, skip_after_deadline

EXAMPLES = Path(__file__).parent.parent / "examples"

LANES = "penstock-lanes"

os.environ.setdefault("PENSTOCK_APPLY_REST", "0.25")  # with the default, tests would mostly wait for it

FAST_TIER = "not deep"
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark evaluates expressions, instead of compiling code for each plan: that takes longer than a query of a few rows.

Only in the session that the tests of the fast tier share. All other sessions have the settings of users: those of the
deep tier, of runs of single files, and of processes that a test starts, such as those of `tests/end_to_end`."""

# The duration of an example depends on how busy the machine is: it is no criterion.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not EXPLORE
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Register the servers shared by the workers of a run, and the report of the slowest tests."""
    config.pluginmanager.register(servers_of(config), PLUGIN)
    config.pluginmanager.register(SharedSetup())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeBudget())
        config.pluginmanager.register(LaneNames(), LANES)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for runs on another Postgres version: skip tests that need no server, or any version of it."""
    parser.addoption(POSTGRES_ONLY, action="store_true", help="run only the tests that talk to a Postgres server")
    parser.addoption(VERSION_ONLY, action="store_true", help="run no tests with the marker any_version")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that need no Postgres, if requested; divide the others into lanes for the workers."""
    if config.getoption(POSTGRES_ONLY):
        items[:] = [item for item in items if needs_postgres(item)]
    if config.getoption(VERSION_ONLY):
        items[:] = [item for item in items if needs_version(item)]
    if hasattr(config, "workerinput"):
        divide(items, Path(config.workerinput["lanes"]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip deep tests, and tests on another Postgres version, after the deadline of the run."""
    if item.get_closest_marker("deep") or item.config.getoption(POSTGRES_ONLY):
        skip_after_deadline()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """Schedule by lanes with ``--dist loadfile``; leave other modes to xdist."""
    names = config.pluginmanager.get_plugin(LANES)
    return Lanes(config, log, names) if config.getoption("dist") == "loadfile" and names is not None else None


@dataclass(frozen=True)
class Database:
    """A database for one test, on the shared server."""

    server: EmbeddedPostgres
    name: str

    @property
    def url(self) -> str:
        """Return the URL for the superuser, without a password."""
        return self.server.url_for(self.name)

    def version(self) -> int:
        """Return the server's major version."""
        return int(self.execute("SHOW server_version_num")[0][0]) // 10_000

    def needs(self, version: int, feature: str) -> None:
        """Skip the test if the server is older than a major version."""
        if self.version() < version:
            pytest.skip(f"{feature}: Postgres {version} or newer")

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect, with autocommit unless `options` override it."""
        return psycopg.connect(self.url, **{"autocommit": True, **options})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute SQL in autocommit mode; return the rows, if any."""
        return self.server.execute(statement, self.name)


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Shorten poll, pause and retry intervals of homes in this process: tests would mostly wait for them."""
    from penstock.engine import capture_process, error_policy, runner, table_loops

    pauses = (
        (runner, "_RECONCILE_SECONDS", 0.2),
        (table_loops, "_RETRY_SECONDS", 0.5),
        (table_loops, "_POLL_SECONDS", 0.1),
        (error_policy, "_FIRST_PAUSE", 0.05),
        (capture_process, "_POLL_SECONDS", 0.1),
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
    """Run capture in a thread, which starts faster than a process, for tests that do not kill it."""
    monkeypatch.setattr("penstock.engine.source_runner.CaptureSupervisor", ThreadCapture)


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """One Spark session for the whole run, with extra memory for what the tests leave in it."""
    tier = INTERPRETED if pytestconfig.getoption("markexpr") == FAST_TIER else {}
    with pytest.MonkeyPatch.context() as patch:
        # Spark's workers import the example kinds, as if they were installed.
        paths = [str(path.parent) for path in EXAMPLES.glob("*/pyproject.toml")]
        patch.setenv("PYTHONPATH", os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]))
        running = session("penstock-tests", config={"spark.driver.memory": "4g", **tier})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """One Postgres of the requested version for the whole run. Tests that stop or reconfigure one start another."""
    with start_postgres(fsync=False, settings={"max_prepared_transactions": "10"}) as server:
        yield server


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> SharedBroker:
    """One Kafka broker for the whole run, shared by all workers: tests use separate topics, named by `unique`."""
    handle = _shared("broker", pytestconfig, tmp_path_factory)
    assert isinstance(handle, SharedBroker)
    return handle


@pytest.fixture(scope="session")
def guarded_broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> SharedBroker:
    """One broker with ACLs for the whole run: tests give permissions on topics of their own."""
    if not has_openssl():
        pytest.skip("openssl is not installed")
    handle = _shared("guarded", pytestconfig, tmp_path_factory)
    assert isinstance(handle, SharedBroker)
    return handle


@pytest.fixture(scope="session")
def registry(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> SharedRegistry:
    """One schema registry for the whole run, shared by all workers: tests use separate subjects."""
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
    with created_database(postgres_server) as created:
        yield created


@contextmanager
def created_database(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    """Create a database; drop it afterwards, with the replication slots left in it.

    Its files are copied: the default since Postgres 15, which writes all of its pages to the WAL, takes twice the time.
    """
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        copied = "STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""
        connection.execute(f'CREATE DATABASE "{name}" {copied}'.encode())
    try:
        yield Database(postgres_server, name)
    finally:
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            _drop_slots(connection, name)
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _drop_slots(connection: psycopg.Connection[tuple[Any, ...]], database: str) -> None:
    """Drop all slots of a database; terminate sessions that still use one."""
    query = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"

    def dropped() -> bool:
        slots = connection.execute(query, [database]).fetchall()
        for slot, pid in slots:
            with suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        return not slots

    until(dropped, f"the slots of {database} to be dropped")
