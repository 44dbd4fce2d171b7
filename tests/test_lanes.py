"""Tests that need Spark run on one worker; other files run on any idle worker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import lanes
from tests.lanes import LANE, LONGEST, OWN_JVM, LaneNames, Lanes, divide
from tests.postgres_only import needs_postgres

ROOT = Path(__file__).parent.parent


class Item:
    """The attributes of a test item that `tests.lanes` reads."""

    def __init__(self, nodeid: str, *fixtures: str, lane: bool = False) -> None:
        self.nodeid, self.fixturenames, self.lane = nodeid, fixtures, lane

    def get_closest_marker(self, name: str) -> object:
        return name if self.lane and name == LANE.name else None


def test_order_is_spark_then_own_jvms_then_long_files_then_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LONGEST", ("tests/long.py",))
    monkeypatch.setattr(lanes, "OWN_JVM", ("tests/jvm/", "tests/starts.py"))
    names = LaneNames()
    items: list[Any] = [
        Item("tests/a.py::one"),
        Item("tests/long.py::two"),
        Item("tests/b.py::three", "spark"),
        Item("tests/a.py::four[spark]", lane=True),
        Item("tests/a.py::five"),
        Item("tests/jvm/c.py::six"),
        Item("tests/jvm/c.py::seven", "spark"),
        Item("tests/starts.py::eight"),
    ]
    divide(items, names.file)
    order = [item.nodeid.rpartition("::")[2] for item in items]
    assert order == ["seven", "three", "four[spark]", "six", "eight", "two", "one", "five"]
    scheduler = Lanes.__new__(Lanes)
    scheduler._names, scheduler._spark = names, None
    assert [scheduler._split_scope(item.nodeid) for item in items] == [
        *("spark", "spark", "spark", "jvm", "jvm", "tests/long.py", "tests/a.py", "tests/a.py")
    ]
    names.pytest_unconfigure()
    assert not names.file.parent.exists()


def test_long_files_exist() -> None:
    assert [file for file in (*LONGEST, *OWN_JVM) if not (ROOT / file).exists()] == []


def test_only_tests_with_a_server_run_on_other_versions() -> None:
    def item(module: object, *fixtures: str) -> Any:
        return SimpleNamespace(module=module, fixturenames=fixtures)

    starting = SimpleNamespace(start_postgres=lambda: None)
    assert needs_postgres(item(None, "database", "postgres_server"))
    assert needs_postgres(item(starting))
    assert not needs_postgres(item(SimpleNamespace(), "spark"))
