"""The benchmarks run and end in their figure; what the figure is, is no matter of a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def bench(*arguments: str, rows: int = 2000) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_BENCH_ROWS": str(rows)}
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_stream_ends_with_its_ratio() -> None:
    done = bench("stream", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio stream \d+\.\d\d", done.stdout.splitlines()[-1])
    assert "synchronous_commit=on" in done.stdout


def test_memory_ends_with_its_ratio() -> None:
    done = bench("memory", "--quick", rows=40_000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio memory \d+\.\d\d", done.stdout.splitlines()[-1])


def test_snapshot_ends_with_its_ratio() -> None:
    done = bench("snapshot", "--quick", rows=20_000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio snapshot \d+\.\d\d", done.stdout.splitlines()[-1])
    for contestant in ("psql COPY to /dev/null", "Arrow, two ranges", "Delta in Spark", "Arrow, half the table"):
        assert contestant in done.stdout


def test_apply_ends_with_its_ratio() -> None:
    done = bench("apply", "--quick", rows=2000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio apply \d+\.\d\d", done.stdout.splitlines()[-1])
    for keys in ("recent", "random"):
        assert f"{keys} keys: " in done.stdout


def test_read_ends_with_its_rows_per_second() -> None:
    done = bench("read", "--quick", rows=20_000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rows_per_second read \d+\.\d\d", done.stdout.splitlines()[-1])


def test_formats_ends_with_its_ratio() -> None:
    done = bench("formats", "--quick", rows=500)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio formats \d+\.\d\d", done.stdout.splitlines()[-1])
    for contestant in ("Avro", "JSON", "Protobuf", "records to Arrow", "pyarrow.json"):
        assert contestant in done.stdout


def test_latency_ends_with_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BENCH_SECONDS", "5")
    done = bench("latency", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"p50_ms latency \d+\.\d\d", done.stdout.splitlines()[-1])
    assert "synchronous_commit=on" in done.stdout


def test_live_ends_with_its_ratio() -> None:
    done = bench("live", "--quick", rows=20_000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio live \d+\.\d\d", done.stdout.splitlines()[-1])
    for query in ("aggregate", "one key", "join of two", "commit to a live view that shows it: p50"):
        assert query in done.stdout


def test_without_a_name_the_benchmarks_are_listed() -> None:
    done = bench()
    assert done.returncode == 0
    assert any(line.startswith("stream ") for line in done.stdout.splitlines())


def test_an_unknown_benchmark_is_refused() -> None:
    done = bench("steam")
    assert done.returncode == 2
    assert "steam" in done.stderr
    assert "stream" in done.stderr
