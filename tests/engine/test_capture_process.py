"""The capture process and its supervisor: real processes against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog, SourceRecord
from penstock.changelog.sqlite.log import SqliteLogReader
from penstock.engine.capture_errors import capture_errors
from penstock.engine.lifecycle import create_source, drop_source
from penstock.engine.source_runner import CaptureSupervisor
from penstock.layout import catalog_path, log_path, run_path
from penstock.model import TableName
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.waiting import PATIENCE, until


class Home:
    """A home with one source that has the table ``t (id int PRIMARY KEY)``."""

    def __init__(self, path: Path, database: Any, **options: Any) -> None:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        self.path, self.database, self.name = path, database, database.name
        self.catalog = Catalog(catalog_path(path))
        create_source(path, self.catalog, PostgresSource.from_url(database.url, self.name, **options))

    @property
    def record(self) -> SourceRecord:
        found = self.catalog.source(self.name)
        assert found is not None
        return found

    def ids(self) -> list[int]:
        with closing(SqliteLogReader(log_path(self.path, self.name))) as reader:
            reach = reader.frontiers()
            batches = reader.read(reader.extent(TableName("public", "t"), reach.valid, reach.durable))
            return [row["id"] for batch in batches for row in batch.column("row").to_pylist()]

    def insert(self, number: int) -> None:
        self.database.execute(f"INSERT INTO t VALUES ({number})")

    def wait_for(self, *numbers: int) -> None:
        until(lambda: self.ids() == list(numbers), f"{numbers} in the log")

    def slot_is_free(self) -> bool:
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = 'penstock_{self.name}'"
        return bool(self.database.execute(query) == [(False,)])


@pytest.fixture
def home(database: Any, tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home", database)
    yield home
    drop_source(home.path, home.catalog, home.name, force=True)


@contextmanager
def capture_process(home: Home, *, source: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run only the capture process."""
    command = [sys.executable, "-m", "penstock.engine.capture_process", str(home.path), source or home.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_process_exits_when_its_input_closes(home: Home) -> None:
    home.insert(1)
    with capture_process(home) as process:
        home.wait_for(1)
        process.send_signal(signal.SIGINT)  # Ctrl-C in the terminal must not stop capture
        home.insert(2)
        home.wait_for(1, 2)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert home.record.state is SourceState.READY
    until(home.slot_is_free, "a free slot")


def test_process_exits_on_sigterm(home: Home) -> None:
    home.insert(1)
    with capture_process(home) as process:
        home.wait_for(1)
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_permanent_error_is_in_the_catalog(home: Home) -> None:
    home.database.execute(f"SELECT pg_drop_replication_slot('penstock_{home.name}')")
    with capture_process(home) as process:
        assert process.wait(PATIENCE) == 3
    record = home.record
    assert record.state is SourceState.FAILED
    assert record.error is not None
    assert "no longer exists" in record.error
    assert record.hint is not None
    assert f"penstock drop {home.name}" in record.hint
    assert capture_errors(home.path, home.name) == {"DefiniteError": 1}


def test_interference_is_in_the_catalog_and_drop_removes_the_watermark_schema(database: Any, tmp_path: Path) -> None:
    home = Home(tmp_path / "home", database, watermarks="table")
    try:
        with capture_process(home) as process:
            home.insert(1)
            home.wait_for(1)
            database.execute("DELETE FROM dblog_meta.watermarks")
            home.insert(2)
            assert process.wait(PATIENCE) == 3
        record = home.record
        assert record.state is SourceState.FAILED
        assert "interference with dblog_meta.watermarks: a row was deleted" in (record.error or "")
        assert record.hint
        assert home.ids() == [1]
    finally:
        drop_source(home.path, home.catalog, home.name, force=True)
    assert database.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'dblog_meta'") == []


def test_unknown_source(home: Home) -> None:
    with capture_process(home, source="nosuch") as process:
        assert process.wait(PATIENCE) == 3


def test_transient_error_is_shown_and_cleared(home: Home) -> None:
    """The server terminates the session: the error is in the catalog until capture works again."""
    home.insert(1)
    with capture_process(home) as process:
        home.wait_for(1)
        slot = f"FROM pg_replication_slots WHERE slot_name = 'penstock_{home.name}'"
        home.database.execute(f"SELECT pg_terminate_backend(active_pid) {slot}")
        until(lambda: home.record.error, "an error in the catalog")
        assert home.record.state is SourceState.READY
        home.insert(2)
        home.wait_for(1, 2)
        assert home.record.error is None
        assert process.poll() is None


def test_supervisor_restarts_the_process(home: Home) -> None:
    supervisor = CaptureSupervisor(home.path, home.name)
    try:
        home.insert(1)
        home.wait_for(1)
        first_pid = supervisor.pid
        os.kill(first_pid, signal.SIGKILL)
        until(lambda: supervisor.pid != first_pid, "another process")
        home.insert(2)
        home.wait_for(1, 2)
        assert not supervisor.ended
    finally:
        supervisor.stop()
    assert supervisor.ended
    assert not is_alive(supervisor.pid)
    until(home.slot_is_free, "a free slot")


def test_supervisor_does_not_restart_the_process_after_a_permanent_error(home: Home) -> None:
    home.database.execute(f"SELECT pg_drop_replication_slot('penstock_{home.name}')")
    supervisor = CaptureSupervisor(home.path, home.name)
    until(lambda: supervisor.ended, "the end of the process")
    assert home.record.state is SourceState.FAILED
    supervisor.stop()
    assert (run_path(home.path) / f"capture-{home.name}.log").read_text() == ""


PARENT = """
import sys, time
from pathlib import Path
from penstock.engine.source_runner import CaptureSupervisor
print(CaptureSupervisor(Path(sys.argv[1]), sys.argv[2]).pid, flush=True)
time.sleep(600)
"""


def test_process_exits_when_its_parent_is_killed(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(home.path), home.name], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        home.insert(1)
        home.wait_for(1)
        assert is_alive(pid)
        parent.kill()
    until(lambda: not is_alive(pid), "the end of the orphaned process")
    until(home.slot_is_free, "a free slot")
    with capture_process(home):
        home.insert(2)
        home.wait_for(1, 2)
