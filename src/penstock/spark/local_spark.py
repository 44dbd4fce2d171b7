"""Spark in this process, with a JVM that can be lost and replaced.

::

    start ─▶ session ─▶ is_alive? ── no ──▶ discard ─▶ start ─▶ another session, in another JVM

PySpark supports one JVM per process and keeps it in class variables: the gateway, the context, the default session.
When the JVM is killed they still refer to it, and every later call fails. `discard` ends what is left of the JVM, and
resets these variables; DataFrames and sessions of the lost JVM stay unusable. Spark's temporary files are in a folder
of our own, because a killed JVM does not remove them.

A JVM also counts as lost if its Spark context was stopped: after a fatal error, Spark stops the context first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.spark.jvm_loss import is_spark_lost
from penstock.spark.session import is_alive, session

__all__ = ["LocalSpark"]

_END_SECONDS = 10.0
_CALL_SITES = "spark.python.sql.dataFrameDebugging.enabled"
"""With this setting, each column costs six calls to the JVM more, so that errors name lines of Penstock's own code."""


class LocalSpark:
    """The Spark session of this process, which can be started again after its JVM was lost."""

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
        printed: Callable[[str], None] | None = None,
    ) -> None:
        """Create it, not started; `printed` receives each line that the JVM prints, in a thread."""
        self._config = dict(config or {})
        self._progress = progress
        self._printed = printed
        self._session: SparkSession | None = None
        self._folder: Path | None = None

    def start(self) -> SparkSession:
        """Start Spark; the first start on a machine downloads its jars."""
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
        config = {"spark.local.dir": str(self._folder), _CALL_SITES: "false", **self._config}
        with _passed_on(self._printed) as output:
            self._session = session(config=config, progress=self._progress, output=output)
        # This server prints the traceback of an EOFError when its JVM is killed.
        server: Any = self._session.sparkContext._accumulatorServer
        server.handle_error = lambda *_: None
        return self._session

    def is_alive(self) -> bool:
        """Return whether the JVM runs, and its context is not stopped."""
        if self._session is None or not is_alive():
            return False
        try:
            context: Any = self._session.sparkContext._jsc
            return not context.sc().isStopped()
        except Exception as error:
            return not is_spark_lost(error)

    def discard(self) -> None:
        """End what is left of a lost JVM, and reset PySpark so that `start` starts another one."""
        gateway: Any = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if process is not None:
            _end(process)
        context: Any = SparkContext._active_spark_context
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            server.shutdown()
            server.server_close()
        if gateway is not None:
            with suppress(Py4JError, OSError):
                gateway.shutdown()
        _reset_pyspark()
        self._session = None
        self._remove_folder()

    def stop(self) -> None:
        """Stop Spark, if it runs."""
        running, self._session = self._session, None
        try:
            if running is not None:
                running.stop()
        except Exception as error:
            if not is_spark_lost(error):
                raise
        finally:
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _passed_on(printed: Callable[[str], None] | None) -> Iterator[int | None]:
    """Yield a file descriptor for the output of a process, whose lines a thread passes on; None without a function."""
    if printed is None:
        yield None
        return
    reading, writing = os.pipe()
    try:
        threading.Thread(target=_read_lines, args=(reading, printed), name="penstock-spark-output", daemon=True).start()
        yield writing
    finally:
        os.close(writing)  # the process has its own


def _read_lines(reading: int, printed: Callable[[str], None]) -> None:
    """Pass on the lines of a pipe until its other end is closed: by the JVM, and by the processes that it started."""
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            printed(line.rstrip("\n"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process of a JVM: its Python workers see the end of their standard input."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _reset_pyspark() -> None:
    from pyspark.sql.context import SQLContext

    with SparkContext._lock:
        context: Any = SparkContext
        context._active_spark_context = context._gateway = context._jvm = None
    classes: Any = SparkSession
    classes._instantiatedSession = classes._activeSession = None
    SQLContext._instantiatedContext = None
