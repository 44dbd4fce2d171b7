"""Tests that need Spark go to one worker, the others in whole files to whichever is free."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import lanes
from tests.facing_postgres import faces_postgres
from tests.lanes import LANE, LONGEST, LaneNames, Lanes, divide

ROOT = Path(__file__).parent.parent


class Item:
    """As much of a test as lanes look at."""

    def __init__(self, nodeid: str, *fixtures: str, lane: bool = False) -> None:
        self.nodeid, self.fixturenames, self.lane = nodeid, fixtures, lane

    def get_closest_marker(self, name: str) -> object:
        return name if self.lane and name == LANE.name else None


def test_spark_comes_first_then_long_files_then_the_rest_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LONGEST", ("tests/long.py",))
    names = LaneNames()
    items: list[Any] = [
        Item("tests/a.py::one"),
        Item("tests/long.py::two"),
        Item("tests/b.py::three", "spark"),
        Item("tests/a.py::four[spark]", lane=True),
        Item("tests/a.py::five"),
    ]
    divide(items, names.file)
    order = [item.nodeid.rpartition("::")[2] for item in items]
    assert order == ["three", "four[spark]", "two", "one", "five"]
    scheduler = Lanes.__new__(Lanes)
    scheduler._names, scheduler._spark = names, None
    assert [scheduler._split_scope(item.nodeid) for item in items] == [
        *("spark", "spark", "tests/long.py", "tests/a.py", "tests/a.py")
    ]
    names.pytest_unconfigure()
    assert not names.file.parent.exists()


def test_long_files_are_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


def test_only_what_talks_to_a_server_is_run_on_other_versions() -> None:
    def item(module: object, *fixtures: str) -> Any:
        return SimpleNamespace(module=module, fixturenames=fixtures)

    starts = SimpleNamespace(start_postgres=lambda: None)
    assert faces_postgres(item(None, "database", "postgres_server"))
    assert faces_postgres(item(starts))
    assert not faces_postgres(item(SimpleNamespace(), "spark"))
