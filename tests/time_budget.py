"""Report the slowest files and tests at the end of a test run.

A test of the fast tier that takes more than `LIMIT` seconds belongs in the deep tier (``@pytest.mark.deep``) or needs a
reason: ``@pytest.mark.slow("why it cannot be faster")``. Tests with neither marker are listed, but do not fail: a slow
machine must not fail a test.

The start of a server or of a Spark session that later tests share is not part of the test that happens to come first:
`SharedSetup` measures session fixtures, and the report lists their sum.

CI has a time limit, and a shared machine with two cores sometimes provides only a fifth of them. After
``PENSTOCK_TEST_DEADLINE`` (seconds since 1970) no further deep test starts: the remaining ones are skipped, and the end
of the run prints how many were not run.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["LIMIT", "SharedSetup", "TimeBudget", "skip_after_deadline"]

LIMIT = 20.0
_FILES, _TESTS = 12, 15
_SHARED = "seconds of session fixtures"
_NOT_RUN = "not run: the deadline of this run has passed"


def skip_after_deadline() -> None:
    """Skip the test if the deadline of the run, if any, has passed."""
    deadline = os.environ.get("PENSTOCK_TEST_DEADLINE")
    if deadline and time.time() > float(deadline):
        pytest.skip(_NOT_RUN)


class SharedSetup:
    """A pytest plugin, in each process that runs tests: adds to reports how long session fixtures took to set up."""

    def __init__(self) -> None:
        self._seconds, self._is_inside = 0.0, False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Measure a fixture of the session, unless another one requested it while it was set up."""
        if self._is_inside or fixturedef.scope != "session":
            return (yield)
        self._is_inside, began = True, time.monotonic()
        try:
            return (yield)
        finally:
            self._is_inside, self._seconds = False, self._seconds + time.monotonic() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the sum to the report of the test's setup; xdist forwards it."""
        report = yield
        if call.when == "setup":
            report.user_properties.append((_SHARED, self._seconds))
            self._seconds = 0.0
        return report


class TimeBudget:
    """A pytest plugin that collects the durations of tests, including their own setup and teardown."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._excused: set[str] = set()
        self._not_run = 0
        self._shared = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of one phase of a test; xdist forwards the reports of its workers."""
        shared = sum(float(str(value)) for name, value in report.user_properties if name == _SHARED)
        self._shared += shared
        self._seconds[report.nodeid] += report.duration - shared
        if {"slow", "deep"} & report.keywords.keys():
            self._excused.add(report.nodeid)
        self._not_run += report.skipped and _NOT_RUN in str(report.longrepr)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lists."""
        for line in self.lines():
            terminalreporter.write_line(line)
        if self._not_run:
            terminalreporter.write_line(
                f"NOT RUN: {self._not_run} tests, because the deadline of this run had passed", red=True
            )

    def lines(self) -> list[str]:
        """Return the lines to print; none for a short run."""
        if sum(self._seconds.values()) < LIMIT:
            return []
        files: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._seconds.items():
            files[test.partition("::")[0]] += seconds
        over = {t: s for t, s in self._seconds.items() if s > LIMIT and t not in self._excused}
        return [
            *_listed("slowest files", files, _FILES),
            *_listed("slowest tests", self._seconds, _TESTS),
            f"servers and sessions that tests share: {self._shared:.1f} s",
            *_listed(f"over {LIMIT:.0f} s: mark deep, or slow with the reason", over, len(over)),
        ]


def _listed(title: str, seconds: dict[str, float], most: int) -> list[str]:
    longest = sorted(seconds.items(), key=lambda pair: -pair[1])[:most]
    return [f"{title}:", *(f"{spent:8.1f} s  {name}" for name, spent in longest)] if longest else []
