"""A run ends with a list of the slowest files and tests."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.time_budget import LIMIT, TimeBudget, skip_after_deadline


def report(nodeid: str, duration: float, *keywords: str) -> Any:
    return SimpleNamespace(nodeid=nodeid, duration=duration, keywords=dict.fromkeys(keywords, 1), skipped=False)


def lines_of(*reports: Any) -> list[str]:
    budget = TimeBudget()
    for one in reports:
        budget.pytest_runtest_logreport(one)
    return [" ".join(line.split()) for line in budget.lines()]


def test_phases_of_a_test_and_tests_of_a_file_are_summed() -> None:
    lines = lines_of(report("tests/a.py::one", 1.0), report("tests/a.py::one", 9.0), report("tests/b.py::two", 11.0))
    assert lines == [
        "slowest files:",
        "11.0 s tests/b.py",
        "10.0 s tests/a.py",
        "slowest tests:",
        "11.0 s tests/b.py::two",
        "10.0 s tests/a.py::one",
    ]


def test_long_test_without_deep_or_slow_marker_is_listed() -> None:
    long = LIMIT + 1
    lines = lines_of(
        report("tests/a.py::slow", long, "slow"),
        report("tests/a.py::deep", long, "deep"),
        report("tests/a.py::neither", long),
    )
    over = lines.index("over 20 s: mark deep, or slow with the reason:")
    assert lines[over + 1 :] == ["21.0 s tests/a.py::neither"]


def test_short_run_prints_nothing() -> None:
    assert lines_of(report("tests/a.py::one", 1.0)) == []


@pytest.mark.parametrize(("deadline", "skips"), [("", False), ("99999999999", False), ("1", True)])
def test_tests_after_the_deadline_are_skipped(monkeypatch: pytest.MonkeyPatch, deadline: str, skips: bool) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DEADLINE", deadline)
    with pytest.raises(pytest.skip.Exception) if skips else nullcontext():
        skip_after_deadline()
