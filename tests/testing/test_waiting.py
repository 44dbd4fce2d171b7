"""Waiting for conditions, with one global timeout."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from penstock.testing import waiting
from penstock.testing.waiting import PATIENCE, stays, until


def test_until_returns_the_first_true_value() -> None:
    values = iter([None, "", "found", "later"])
    assert until(lambda: next(values), "a value") == "found"
    assert next(values) == "later"


def test_until_checks_at_least_once() -> None:
    assert until(lambda: 7, "seven", 0) == 7


def test_until_times_out_and_names_the_condition() -> None:
    with pytest.raises(AssertionError, match=r"timeout after 0\.05 s waiting for a miracle"):
        until(lambda: False, "a miracle", 0.05)


def test_until_uses_the_global_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    with pytest.raises(AssertionError, match=r"timeout after 0\.05 s"):
        until(lambda: False, "a miracle")


def test_error_in_the_condition_ends_the_wait() -> None:
    def fails() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        until(fails, "nothing")


def test_stays_checks_more_than_once() -> None:
    checks = itertools.count(1)
    stays(lambda: next(checks), "true", 0.05)
    assert next(checks) > 2


def test_stays_fails_at_the_first_false_value() -> None:
    values = iter([True, True, False])
    with pytest.raises(AssertionError, match="condition did not hold throughout: the door closed"):
        stays(lambda: next(values), "the door closed", PATIENCE)


@pytest.mark.parametrize(("given", "seconds"), [({}, 600.0), ({"PENSTOCK_TEST_PATIENCE": "7.5"}, 7.5)])
def test_patience_comes_from_the_environment(given: dict[str, str], seconds: float) -> None:
    program = "from penstock.testing.waiting import PATIENCE; print(PATIENCE)"
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=path | given, capture_output=True, text=True, check=True)
    assert float(done.stdout) == seconds
