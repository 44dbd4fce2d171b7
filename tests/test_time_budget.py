"""A run ends with a list of the slowest files and tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import time_budget
from tests.time_budget import LIMIT, SharedSetup, TimeBudget, skip_after_deadline


def report(nodeid: str, duration: float, *keywords: str) -> Any:
    return SimpleNamespace(
        nodeid=nodeid, duration=duration, keywords=dict.fromkeys(keywords, 1), skipped=False, user_properties=[]
    )


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
        "servers and sessions that tests share: 0.0 s",
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


class Clock:
    """A clock that tests advance."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def advance(self) -> None:
        self.now += 30.0


def resumed(wrapper: Any, inside: Callable[[], object], value: object = None) -> None:
    """Run a hook wrapper around a function."""
    next(wrapper)
    inside()
    with pytest.raises(StopIteration):
        wrapper.send(value)


def test_session_fixtures_are_not_part_of_the_first_test(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, plugin = Clock(), SharedSetup()
    monkeypatch.setattr(time_budget, "time", clock)

    def set_up(scope: str, inside: Callable[[], object]) -> None:
        resumed(plugin.pytest_fixture_setup(cast("Any", SimpleNamespace(scope=scope))), inside)

    def session_in_a_session() -> None:
        set_up("session", clock.advance)
        clock.advance()

    set_up("session", session_in_a_session)
    set_up("function", clock.advance)
    reports = [report("tests/a.py::first", clock.now), report("tests/a.py::second", 1.0)]
    for one in reports:
        call = cast("Any", SimpleNamespace(when="setup"))
        resumed(plugin.pytest_runtest_makereport(call), lambda: None, one)
    lines = lines_of(*reports)
    assert "30.0 s tests/a.py::first" in lines, "its own fixture"
    assert "1.0 s tests/a.py::second" in lines
    assert "servers and sessions that tests share: 60.0 s" in lines


def test_short_run_prints_nothing() -> None:
    assert lines_of(report("tests/a.py::one", 1.0)) == []


@pytest.mark.parametrize(("deadline", "skips"), [("", False), ("99999999999", False), ("1", True)])
def test_tests_after_the_deadline_are_skipped(monkeypatch: pytest.MonkeyPatch, deadline: str, skips: bool) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DEADLINE", deadline)
    with pytest.raises(pytest.skip.Exception) if skips else nullcontext():
        skip_after_deadline()
