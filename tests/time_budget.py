"""What a run of tests spent its time on: its last lines name the slowest files and tests.

A test of the fast tier that takes more than `LIMIT` seconds belongs into the deep tier (``@pytest.mark.deep``) or
carries its reason: ``@pytest.mark.slow("why it cannot be faster")``. Those that do neither are listed. That is all: a
slow machine fails no test.

CI has a limit of its own, and on a bad day a machine of two cores has a fifth of them. ``PENSTOCK_TEST_DEADLINE``
(seconds since 1970) is when to begin no further test of the deep tier: those that are left are skipped, and the end of
the run says how many were not run.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict

import pytest

__all__ = ["LIMIT", "TimeBudget", "skip_after_deadline"]

LIMIT = 20.0
_FILES, _TESTS = 12, 15
_NOT_RUN = "not run: the time of this run is over"


def skip_after_deadline() -> None:
    """Skip a test that would begin after the deadline of the run, if it has one."""
    deadline = os.environ.get("PENSTOCK_TEST_DEADLINE")
    if deadline and time.time() > float(deadline):
        pytest.skip(_NOT_RUN)


class TimeBudget:
    """Collects how long tests took, with what was set up and torn down for them; a plugin of pytest."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._excused: set[str] = set()
        self._not_run = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test; reports of workers come here, too."""
        self._seconds[report.nodeid] += report.duration
        if {"slow", "deep"} & report.keywords.keys():
            self._excused.add(report.nodeid)
        self._not_run += report.skipped and _NOT_RUN in str(report.longrepr)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lists."""
        for line in self.lines():
            terminalreporter.write_line(line)
        if self._not_run:
            terminalreporter.write_line(f"NOT RUN: {self._not_run} tests, as the time of this run was over", red=True)

    def lines(self) -> list[str]:
        """Return what is printed; nothing for a run of a moment."""
        if sum(self._seconds.values()) < LIMIT:
            return []
        files: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._seconds.items():
            files[test.partition("::")[0]] += seconds
        over = {t: s for t, s in self._seconds.items() if s > LIMIT and t not in self._excused}
        return [
            *_listed("slowest files", files, _FILES),
            *_listed("slowest tests", self._seconds, _TESTS),
            *_listed(f"over {LIMIT:.0f} s: mark deep, or slow with the reason", over, len(over)),
        ]


def _listed(title: str, seconds: dict[str, float], most: int) -> list[str]:
    longest = sorted(seconds.items(), key=lambda pair: -pair[1])[:most]
    return [f"{title}:", *(f"{spent:8.1f} s  {name}" for name, spent in longest)] if longest else []
