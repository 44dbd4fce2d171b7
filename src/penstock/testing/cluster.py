"""A local Spark standalone cluster: a master and its workers, each in its own JVM.

It listens on the loopback interface only. Executors are child processes of the workers, as on any cluster: a query must
send them everything they need, or refer to files that they can read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.errors import TransientError
from penstock.spark.java import java_home
from penstock.testing.java_server import free_ports

__all__ = ["BRIEF", "SparkCluster", "start_cluster"]

BRIEF = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:-UsePerfData"}
"""The environment of a short-lived JVM on a machine with few cores: it compiles little."""

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_READY_SECONDS = 60.0


def start_cluster(folder: Path, workers: int = 2, cores: int = 1, memory: str = "1500M") -> SparkCluster:
    """Start a master and workers with their files in `folder`; return when all workers have registered."""
    cluster = SparkCluster(folder)
    try:
        cluster.start(workers, cores, memory)
    except BaseException:
        cluster.stop()
        raise
    return cluster


class SparkCluster:
    """A master and its workers; a context manager that stops them at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._page = free_ports()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """The value of ``spark.master``."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self, workers: int, cores: int, memory: str) -> None:
        """Start the master and the workers."""
        ports = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)]
        self._run("master", [_MASTER, *ports])
        self._await("the master", lambda output: "Starting Spark master" in output, "master")
        for number in range(workers):
            own = ["--host", "127.0.0.1", "-c", str(cores), "-m", memory, "-d", str(self._folder / f"work-{number}")]
            self._run(f"worker-{number}", [_WORKER, *own, "--webui-port", str(free_ports()[0]), self.master])
        for number in range(workers):
            self._await("a worker", lambda output: "Successfully registered" in output, f"worker-{number}")

    def stop(self) -> None:
        """Stop the workers and the master."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, name: str, program: list[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [str(_spark_home() / "bin" / "spark-class"), *program]
            self._processes.append(subprocess.Popen(command, env=_environment(), stdout=log, stderr=log))

    def _await(self, what: str, ready: object, name: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        path = self._folder / f"{name}.log"
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            if ready(path.read_text(errors="replace")):  # type: ignore[operator]
                return
            time.sleep(0.1)
        message = f"{what} of the Spark cluster did not start"
        raise TransientError(message, f"See {path}.")


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _environment() -> dict[str, str]:
    own = {
        "SPARK_HOME": str(_spark_home()),
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    return {**os.environ, **BRIEF, **own}
