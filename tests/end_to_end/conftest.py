"""Fixtures for end-to-end tests with real parts: Postgres, capture process, change log, Spark, Delta."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from penstock.demo.scenario import create_bank
from penstock.demo.shop import create_shop
from penstock.engine.run_state import read_run_state
from penstock.testing.cluster import BRIEF
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database

_SPARK = "org.apache.spark.deploy.SparkSubmit"


@pytest.fixture
def shop_and_bank(database: Database) -> Database:
    """A small database with the demo's tables."""
    with database.connect() as connection:
        create_shop(connection, customers=200)
        create_bank(connection, accounts=50)
    return database


@dataclass
class Penstock:
    """`penstock run` as a user starts it, in its own process."""

    home: Path
    url: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    output: Path = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.home.with_suffix(".out")

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.cli", "run", self.url, "--home", str(self.home), "--name", "demo"]
        command += self.options
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=os.environ | BRIEF | self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def require_running(self) -> None:
        """Fail with the output of the process if it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)

    def capture_pid(self) -> int | None:
        """Find the capture process of this home."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"penstock.engine.capture_process" in words and str(self.home.absolute()).encode() in words:
                    return int(entry.name)
        return None

    def has_printed(self, text: str, times: int) -> bool:
        """Whether the output contains a text at least a number of times."""
        self.require_running()
        return self.output.read_text().count(text) >= times

    def is_in_state(self, state: str) -> bool:
        """Whether the process reports a state, such as `running`: Spark has started."""
        self.require_running()
        found = read_run_state(self.home)
        return found is not None and found.state == state

    def jvm_pid(self) -> int | None:
        """Find Spark's JVM."""
        self.require_running()
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it may end meanwhile
                command = child.cmdline()
                if command and "java" in command[0] and _SPARK in command:  # another java only prints its version
                    return int(child.pid)
        return None

    def kill_jvm(self) -> None:
        """Kill only Spark's JVM, as soon as it runs, and wait until it is gone."""
        pid = until(self.jvm_pid, "Spark's JVM")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.jvm_pid() != pid, "the end of the JVM")

    def kill_capture(self) -> None:
        pid = self.capture_pid()
        assert pid is not None, self.output.read_text()
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def penstock_run(tmp_path: Path, shop_and_bank: Database) -> Iterator[Penstock]:
    """`penstock run` on the small shop and bank; not started yet."""
    running = Penstock(tmp_path / "home", shop_and_bank.url)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.kill()
    until(lambda: running.capture_pid() is None, "the capture process to end with the process that started it")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path that every account can enter, for the socket of a server."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
