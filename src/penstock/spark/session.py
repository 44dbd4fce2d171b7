"""A Spark session that has what Penstock needs, and is tuned for one machine.

`session` is for those who have no Spark yet: everything runs in this process and one JVM beside it. `configure` is for
those who have: it adds to their builder what Penstock cannot do without, and leaves alone what they have set.

- **Needed** everywhere: Delta (jars, extension, catalog), UTC, and dates written as they are.
- **Local** tuning: a MERGE of a few thousand rows should not be cut into 200 tasks, a table's file list not into 50.
  The JVM compiles little (C1 only), because it lives for seconds or waits for small batches.

Jars come from the cache (`penstock.spark.jars`): no dependency is resolved when a session starts.

Ctrl-C reaches every process of the terminal. PySpark lets its JVM ignore it, and the JVM ends when its standard input
does, that is with this process, however that ends. PySpark also puts its own handler of SIGINT in the place of whatever
was there; `session` puts a caller's handler back, so that a clean stop stays the caller's affair.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pyspark import SparkContext
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
    # Re-planning at run time costs a fifth of a small query, and Delta runs one per scan to list its files.
    "spark.sql.adaptive.enabled": "false",
    # A live table is a union: with this, base rows go from it straight into what follows, without a copy of each.
    "spark.sql.codegen.wholeStage.union.enabled": "true",
    # A MERGE into one table compiles some 200 classes; of the default of 100, none is left for the next one.
    "spark.sql.codegen.cache.maxEntries": "600",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # The default manager starts a process or two per micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",  # C1 alone gets 48 MB, which Spark fills in two minutes; then all is interpreted
    "-XX:+UseParallelGC",
    f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
)

# PySpark raises what is wrong with a query, and also prints it through these as one line of JSON with the JVM's stack.
_REPEATERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def session(
    name: str = "penstock",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> SparkSession:
    """Return a Spark session on this machine, or the one that this process already has.

    `config` holds Spark settings that go before Penstock's own; `master` is all cores of this machine, two threads at
    least; `progress` is told when jars are fetched. The driver has the memory that `PENSTOCK_DRIVER_MEMORY` says (2g).
    """
    if (running := SparkSession.getActiveSession()) or (running := _of_context(SparkContext._active_spark_context)):
        return _fit(running)
    builder = SparkSession.builder.appName(name).master(master or f"local[{max(2, os.cpu_count() or 2)}]")
    for key, value in (config or {}).items():
        builder.config(key, value)
    _add_local(builder)
    configure(builder, progress=progress)
    with _signal_handler_kept():
        return builder.getOrCreate()


def configure(builder: SparkSession.Builder, *, progress: Callable[[str], None] | None = None) -> SparkSession.Builder:
    """Add to your own `builder` what Penstock needs, and return it.

    What you have set stays; jars and extensions are added to yours. The Java and the Python that Spark starts are
    chosen here, through `JAVA_HOME` and `PYSPARK_PYTHON`, unless a JVM is already running.
    """
    _choose_programs()
    _default(builder, _NEEDED)
    _append(builder, "spark.jars", [str(path) for path in ensure_jars(progress)])
    _append(builder, "spark.sql.extensions", [_EXTENSION])
    return builder


def is_alive() -> bool:
    """Say whether the JVM that this process started still runs."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def _choose_programs() -> None:
    """Set in the environment what PySpark takes from nowhere else."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = str(java_home())


def _add_local(builder: SparkSession.Builder) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _default(builder, _LOCAL)
    _default(builder, {"spark.driver.memory": os.environ.get("PENSTOCK_DRIVER_MEMORY", "2g")})
    _default(builder, {"spark.sql.warehouse.dir": _own_folder().as_uri()})
    # Spark's own default is true, with a warning for each function where pandas is missing.
    _default(builder, {"spark.sql.execution.pythonUDF.arrow.enabled": str(find_spec("pandas") is not None).lower()})
    _append(builder, "spark.driver.extraJavaOptions", _JVM_OPTIONS, separator=" ")
    for name in _REPEATERS:
        PySparkLogger.getLogger(name).disabled = True


def _own_folder() -> Path:
    """Make a folder that lives as long as this process; tables without a location of their own go there."""
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
    """Add `values` to a list that the user may have begun; a second call changes nothing."""
    present = [value for value in builder._options.get(key, "").split(separator) if value]
    builder.config(key, separator.join(present + [value for value in values if value not in present]))


def _of_context(context: SparkContext | None) -> SparkSession | None:
    return SparkSession(context) if context else None


def _fit(running: SparkSession) -> SparkSession:
    """Return `running` if Penstock can work with it."""
    extensions = running.conf.get("spark.sql.extensions", "") or ""
    if _EXTENSION in extensions.split(","):
        return running
    message = "this process already runs a Spark session, and it cannot read Delta tables"
    raise UsageError(message, "Make it with penstock.configure(SparkSession.builder…).getOrCreate(), or stop it first.")


@contextmanager
def _signal_handler_kept() -> Iterator[None]:
    """Put a caller's own handler of SIGINT back after PySpark has replaced it.

    Where there was only Python's default, PySpark's handler stays: it cancels running jobs before it interrupts.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before != signal.default_int_handler and signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)
