"""A short soak: what ``make soak`` measures for half an hour must stay flat for some minutes, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak import soak

MINUTES = float(os.environ.get("PENSTOCK_SOAK_MINUTES", "3"))

JVM_MEGABYTES = 3072
"""What Spark's JVM may have: it fills its heap of 2 GB before it collects, and has memory for code, threads and buffers
beside it. In minutes it may still be filling it; in half an hour it settled at 2.6 GB."""

pytestmark = pytest.mark.deep


def test_memory_files_threads_and_disk_stay_flat(tmp_path: Path) -> None:
    measured = soak(MINUTES, tmp_path)
    report = "\n".join(measured.report())
    print(report)
    assert not measured.errors, measured.errors[0]
    assert measured.queries > 0 and measured.transactions > 0
    for (who, what), series in measured.series.items():
        if who == "workers":  # Spark starts and ends them
            continue
        first, second = series.settled().halves()
        if what in ("files", "threads", "connections"):
            assert second <= first * 1.1 + 5, f"{who}: {what} rise from {first} to {second}\n{report}"
        elif (who, what) == ("JVM", "memory"):
            assert max(series.values) <= JVM_MEGABYTES, f"JVM: memory rises to {max(series.values)} MB\n{report}"
        elif what == "memory":
            assert second <= first * 1.15 + 20, f"{who}: memory rises from {first} to {second} MB\n{report}"
        elif what == "log":
            assert second <= first * 1.5 + 5, f"the log grows from {first} to {second} MB\n{report}"
