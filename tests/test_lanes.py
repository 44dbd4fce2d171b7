"""Tests that need Spark run on one worker; other files run on any idle worker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import lanes
from tests.lanes import DEEP, END_TO_END, LANE, LONGEST, OWN_JVM, LaneNames, Lanes, divide
from tests.postgres_only import needs_postgres

ROOT = Path(__file__).parent.parent


class Item:
    """The attributes of a test item that `tests.lanes` reads."""

    def __init__(self, nodeid: str, *fixtures: str, marker: str = "") -> None:
        self.nodeid, self.fixturenames, self.marker = nodeid, fixtures, marker

    def get_closest_marker(self, name: str) -> object:
        return name if self.marker == name else None


def scheduler(names: LaneNames, *, is_deep: bool) -> Lanes:
    made = Lanes.__new__(Lanes)
    made._names, made._spark, made._is_deep = names, None, is_deep
    return made


def test_order_is_spark_then_own_jvms_then_long_files_then_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LONGEST", ("tests/long.py",))
    monkeypatch.setattr(lanes, "OWN_JVM", ("tests/jvm/", "tests/starts.py"))
    names = LaneNames()
    items: list[Any] = [
        Item("tests/a.py::one"),
        Item("tests/long.py::two"),
        Item("tests/b.py::three", "spark"),
        Item("tests/a.py::four[spark]", marker=LANE.name),
        Item("tests/a.py::five"),
        Item("tests/jvm/c.py::six"),
        Item("tests/jvm/c.py::seven", "spark"),
        Item("tests/starts.py::eight"),
    ]
    divide(items, names.file)
    order = [item.nodeid.rpartition("::")[2] for item in items]
    assert order == ["seven", "three", "four[spark]", "six", "eight", "two", "one", "five"]
    lanes_of = scheduler(names, is_deep=False)
    assert [lanes_of._split_scope(item.nodeid) for item in items] == [
        *("spark", "spark", "spark", "jvm", "jvm", "tests/long.py", "tests/a.py", "tests/a.py")
    ]
    names.pytest_unconfigure()
    assert not names.file.parent.exists()


def test_deep_tier_starts_with_end_to_end_tests_in_one_lane_and_runs_the_rest_by_file() -> None:
    names = LaneNames()
    items: list[Any] = [
        Item("tests/a.py::one", "spark", marker=DEEP),
        Item("tests/b.py::two", marker=DEEP),
        Item(f"{END_TO_END}c.py::three", "spark", marker=DEEP),
        Item(f"{END_TO_END}d.py::four", marker=DEEP),
    ]
    divide(items, names.file)
    deep = scheduler(names, is_deep=True)
    assert [deep._split_scope(item.nodeid) for item in items] == ["jvm", "jvm", "tests/a.py", "tests/b.py"]
    names.pytest_unconfigure()


def test_long_files_exist() -> None:
    assert [file for file in (*LONGEST, *OWN_JVM) if not (ROOT / file).exists()] == []


def test_only_tests_with_a_server_run_on_other_versions() -> None:
    def item(module: object, *fixtures: str) -> Any:
        return SimpleNamespace(module=module, fixturenames=fixtures)

    starting = SimpleNamespace(start_postgres=lambda: None)
    assert needs_postgres(item(None, "database", "postgres_server"))
    assert needs_postgres(item(starting))
    assert not needs_postgres(item(SimpleNamespace(), "spark"))
