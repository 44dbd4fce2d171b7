"""Each benchmark runs and prints its figure last; the value of the figure is not tested.

Benchmarks that need Spark run in one process, one after the other: its JVM starts and warms up once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS_IN_SPARK = {"apply": 1000, "latency": 1000, "live": 10_000, "read": 10_000, "snapshot": 10_000, "upsert": 1000}
RUN_ALL = """
import contextlib, io, json, os, sys, traceback
from bench.__main__ import main

found = {}
for name, rows in json.loads(sys.argv[1]).items():
    os.environ["PENSTOCK_BENCH_ROWS"] = str(rows)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            code = main([name, "--quick"])
        except Exception:
            traceback.print_exc()
            code = 1
    found[name] = [code, output.getvalue()]
print(json.dumps(found))
"""
"""Prints the exit code and the output of each benchmark."""


def started(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=1500
    )


def bench(*arguments: str, rows: int = 2000) -> subprocess.CompletedProcess[str]:
    return started([sys.executable, "-m", "bench", *arguments], PENSTOCK_BENCH_ROWS=str(rows))


@pytest.fixture(scope="module")
def in_spark() -> dict[str, str]:
    """Return the output of each benchmark that needs Spark, after checking that all of them succeeded."""
    command = [sys.executable, "-c", RUN_ALL, json.dumps(ROWS_IN_SPARK)]
    done = started(command, PENSTOCK_BENCH_SECONDS="2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(ROWS_IN_SPARK, 0), done.stderr
    return {name: output for name, (_, output) in found.items()}


@pytest.mark.deep
def test_stream_ends_with_its_ratio() -> None:
    done = bench("stream", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio stream \d+\.\d\d", done.stdout.splitlines()[-1])
    assert "synchronous_commit=on" in done.stdout


@pytest.mark.deep
def test_memory_ends_with_its_ratio() -> None:
    done = bench("memory", "--quick", rows=40_000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio memory \d+\.\d\d", done.stdout.splitlines()[-1])


@pytest.mark.deep
def test_formats_ends_with_its_ratio() -> None:
    done = bench("formats", "--quick", rows=500)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio formats \d+\.\d\d", done.stdout.splitlines()[-1])
    for candidate in ("Avro", "JSON", "Protobuf", "records to Arrow", "pyarrow.json"):
        assert candidate in done.stdout


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_sink_ends_with_its_ratio() -> None:
    done = bench("sink", "--quick", rows=4000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio sink \d+\.\d\d", done.stdout.splitlines()[-1])
    for candidate in ("Debezium, JSON", "Debezium, Avro", "capture and sink, JSON", "sink, Avro UPSERT"):
        assert candidate in done.stdout


@pytest.mark.deep
def test_upstream_ends_with_its_ratio() -> None:
    done = bench("upstream", "--quick", rows=50_000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio upstream \d+\.\d\d", done.stdout.splitlines()[-1])


@pytest.mark.deep
def test_sink_latency_ends_with_its_figure() -> None:
    command = [sys.executable, "-m", "bench", "sink-latency", "--quick"]
    done = started(command, PENSTOCK_BENCH_SECONDS="3")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"p99_ms sink-latency \d+\.\d\d", done.stdout.splitlines()[-1])


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_sql_ends_with_its_ratio() -> None:
    done = bench("sql", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio sql \d+\.\d\d", done.stdout.splitlines()[-1])
    for candidate in ("aggregate, first row", "point query, first row", "own Spark", "penstock status"):
        assert candidate in done.stdout


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "figure", "expected"),
    [
        ("apply", "ratio", ["recent keys: ", "random keys: "]),
        ("latency", "p50_ms", ["synchronous_commit=on"]),
        ("live", "ratio", ["aggregate", "one key", "join of two", "commit to a live view that shows it: p50"]),
        ("read", "rows_per_second", []),
        (
            "snapshot",
            "ratio",
            ["psql COPY to /dev/null", "Arrow, two ranges", "Delta in Spark", "Arrow, half the table"],
        ),
        ("upsert", "ratio", ["recent keys: ", "random keys: ", "messages/s"]),
    ],
)
def test_spark_benchmark_ends_with_its_figure(
    in_spark: dict[str, str], name: str, figure: str, expected: list[str]
) -> None:
    printed = in_spark[name]
    assert re.fullmatch(rf"{figure} {name} \d+\.\d\d", printed.splitlines()[-1])
    assert [part for part in expected if part not in printed] == []


def test_without_a_name_the_benchmarks_are_listed() -> None:
    done = bench()
    assert done.returncode == 0
    assert any(line.startswith("stream ") for line in done.stdout.splitlines())


def test_unknown_benchmark_is_rejected() -> None:
    done = bench("steam")
    assert done.returncode == 2
    assert "steam" in done.stderr
    assert "stream" in done.stderr
