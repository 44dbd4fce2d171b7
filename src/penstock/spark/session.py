"""Spark sessions with the settings that Penstock requires, tuned for one machine.

`session` creates a Spark session in this process, with one JVM. `configure` adds the settings that Penstock requires to
an existing builder, and does not override settings of the user.

- **Required** everywhere: Delta (jars, extension, catalog), UTC, and dates without calendar rebasing.
- **Local** tuning: a MERGE of a few thousand rows should not be split into 200 tasks, nor a table's file list into 50.
  The JVM compiles with C1 only, because it either lives for seconds or processes small batches.

Jars come from the cache (`penstock.spark.jars`): starting a session resolves no dependencies.

Ctrl-C reaches every process of the terminal. PySpark makes its JVM ignore it, and the JVM ends when its standard input
is closed, that is, with this process, however it ends. PySpark also replaces the handler of SIGINT; `session` restores
a caller's handler, so that the caller remains responsible for a clean stop.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.errors import UsageError
from penstock.spark.jars import ensure_jars
from penstock.spark.java import java_home

__all__ = ["configure", "is_alive", "session"]

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

_NEEDED = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
    # Adaptive execution costs a fifth of a small query, and Delta runs such a query per scan to list its files.
    "spark.sql.adaptive.enabled": "false",
    # A live table is a union: with this setting, base rows pass to the next operator without a copy.
    "spark.sql.codegen.wholeStage.union.enabled": "true",
    # A MERGE into one table compiles about 200 classes: with the default of 100, the next one finds none in the cache.
    "spark.sql.codegen.cache.maxEntries": "600",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # The default manager starts one or two processes per micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",  # C1 alone has 48 MB, which Spark fills in two minutes; then code is interpreted
    "-XX:+UseParallelGC",
    f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
)

# PySpark raises errors of a query, and also logs them here as a line of JSON with the JVM's stack trace.
_REPEATERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def session(
    name: str = "penstock",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
    output: int | None = None,
) -> SparkSession:
    """Return a Spark session on this machine, or the one that this process already has.

    `config` contains Spark settings that override those of Penstock. The default of `master` is all cores of this
    machine, with at least two threads. `progress` is called with a message before jars are downloaded.
    `PENSTOCK_DRIVER_MEMORY` sets the memory of the driver (default 2g). `output` is a file descriptor for what the JVM
    prints, instead of the stdout and stderr of this process.
    """
    if (running := SparkSession.getActiveSession()) or (running := _of_context(SparkContext._active_spark_context)):
        return _fit(running)
    builder = SparkSession.builder.appName(name).master(master or f"local[{max(2, os.cpu_count() or 2)}]")
    for key, value in (config or {}).items():
        builder.config(key, value)
    _add_local(builder)
    configure(builder, progress=progress)
    with _signal_handler_kept():
        if SparkContext._gateway is None:
            _launch(builder, output)
        return builder.getOrCreate()


def configure(builder: SparkSession.Builder, *, progress: Callable[[str], None] | None = None) -> SparkSession.Builder:
    """Add the settings that Penstock requires to `builder`, and return it.

    Existing settings are kept; jars and extensions are appended to yours. Unless a JVM is already running, this also
    selects the Java and the Python that Spark starts, through `JAVA_HOME` and `PYSPARK_PYTHON`.
    """
    _choose_programs()
    _default(builder, _NEEDED)
    _append(builder, "spark.jars", [str(path) for path in ensure_jars(progress)])
    _append(builder, "spark.sql.extensions", [_EXTENSION])
    return builder


def is_alive() -> bool:
    """Return whether the JVM that this process started is still running."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


class _Jvm(subprocess.Popen[bytes]):
    """The process of a JVM that is started; none that has ended counts as a success.

    PySpark waits for the port of the JVM as long as `poll` returns None or 0. A JVM that ends with exit code 0 before
    it has a port, as one does that only prints its version, would be waited for forever.
    """

    def poll(self) -> int | None:
        """Return None as long as the process runs; then its exit code, or 1 instead of 0."""
        code = super().poll()
        return 1 if code == 0 else code


def _launch(builder: SparkSession.Builder, output: int | None) -> None:
    """Start the JVM for a session, with its output redirected if `output` is given; the builder then uses this JVM."""
    conf = SparkConf()
    for key, value in builder._options.items():
        conf.set(key, value)
    redirected = {} if output is None else {"stdout": output, "stderr": output}
    original, java_gateway.Popen = java_gateway.Popen, _Jvm  # type: ignore[attr-defined,assignment]
    try:
        gateway = java_gateway.launch_gateway(conf, redirected)  # type: ignore[no-untyped-call]
    finally:
        java_gateway.Popen = original  # type: ignore[attr-defined]
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _choose_programs() -> None:
    """Set the environment variables from which PySpark reads its programs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = str(java_home())


def _add_local(builder: SparkSession.Builder) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _default(builder, _LOCAL)
    _default(builder, {"spark.driver.memory": os.environ.get("PENSTOCK_DRIVER_MEMORY", "2g")})
    _default(builder, {"spark.sql.warehouse.dir": _own_folder().as_uri()})
    # Spark's default is true, with a warning for each function if pandas is missing.
    _default(builder, {"spark.sql.execution.pythonUDF.arrow.enabled": str(find_spec("pandas") is not None).lower()})
    _append(builder, "spark.driver.extraJavaOptions", _JVM_OPTIONS, separator=" ")
    for name in _REPEATERS:
        PySparkLogger.getLogger(name).disabled = True


def _own_folder() -> Path:
    """Create a folder that is removed with this process, for tables without a location."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-warehouse-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _default(builder: SparkSession.Builder, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        if key not in builder._options:
            builder.config(key, value)


def _append(
    builder: SparkSession.Builder, key: str, values: list[str] | tuple[str, ...], *, separator: str = ","
) -> None:
    """Append `values` to a list setting that the user may have set; a second call changes nothing."""
    present = [value for value in builder._options.get(key, "").split(separator) if value]
    builder.config(key, separator.join(present + [value for value in values if value not in present]))


def _of_context(context: SparkContext | None) -> SparkSession | None:
    return SparkSession(context) if context else None


def _fit(running: SparkSession) -> SparkSession:
    """Return `running` if Penstock can use it; raise a `UsageError` otherwise."""
    extensions = running.conf.get("spark.sql.extensions", "") or ""
    if _EXTENSION in extensions.split(","):
        return running
    message = "the Spark session of this process cannot read Delta tables"
    raise UsageError(
        message, "Create it with penstock.configure(SparkSession.builder…).getOrCreate(), or stop it first."
    )


@contextmanager
def _signal_handler_kept() -> Iterator[None]:
    """Restore a caller's handler of SIGINT after PySpark has replaced it.

    If there was only Python's default, PySpark's handler stays: it cancels running jobs before it interrupts.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before != signal.default_int_handler and signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)
