"""Rows of base tables in the status: tables take turns, and each is counted again after it has changed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.shop import Shop

from penstock.engine import table_loops
from penstock.engine.row_counts import RowCounts
from penstock.event_log import Event
from penstock.model import TableName
from penstock.testing.waiting import until

SETUP = "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 40)"


class _Table:
    """A table that has so many rows, and takes so many seconds to be counted."""

    def __init__(self, world: _World, name: str, rows: int | None = 7, seconds: float = 1.0) -> None:
        self.at: Any = SimpleNamespace(version=1)
        self.gone = False
        self.record = SimpleNamespace(source="shop", local=name, upstream=TableName("public", name))
        self.base = SimpleNamespace(count=self._count)
        self.catalog = SimpleNamespace(bases=SimpleNamespace(note_rows=world.note))
        self._world, self._rows, self._seconds = world, rows, seconds

    def _count(self) -> int | None:
        self._world.now += self._seconds
        if self._rows == -1:
            message = "the file has gone"
            raise FileNotFoundError(message)
        return self._rows


class _World:
    """A clock, and what was recorded."""

    def __init__(self) -> None:
        self.now = 0.0
        self.noted: list[tuple[str, int]] = []
        self.events: list[Event] = []
        self.counts: Any = RowCounts(20.0, self._report, lambda: self.now)

    def note(self, source: str, local: str, rows: int) -> None:
        assert source == "shop"
        self.noted.append((local, rows))

    def count(self, *tables: Any) -> list[str]:
        """Count for one interval; return the names of the tables that were counted."""
        before = len(self.noted)
        self.counts.count(tables)
        self.now += 20.0
        return [name for name, _ in self.noted[before:]]

    def _report(self, event: str) -> None:
        assert isinstance(event, Event)
        self.events.append(event)


def test_tables_take_turns() -> None:
    world = _World()
    tables = [_Table(world, name, seconds=0.6) for name in "abc"]
    assert [world.count(*tables), world.count(*tables), world.count(*tables)] == [["a", "b"], ["c"], []]
    tables[0].at = tables[1].at = tables[2].at = SimpleNamespace(version=2)
    assert world.count(*tables) == ["a", "b"]
    tables[0].at = SimpleNamespace(version=3)
    assert world.count(*tables) == ["c", "a"], "the one whose count is oldest is first"


def test_at_least_one_table_is_counted() -> None:
    world = _World()
    tables = [_Table(world, name, seconds=300.0) for name in "ab"]
    assert [world.count(*tables), world.count(*tables)] == [["a"], ["b"]]


def test_tables_without_a_complete_snapshot_or_without_statistics_have_no_count() -> None:
    world = _World()
    pending, released, unknown = (_Table(world, name) for name in ("pending", "released", "unknown"))
    pending.at, released.gone = None, True
    unknown = _Table(world, "unknown", rows=None)
    assert world.count(pending, released, unknown) == []
    assert world.events == []


def test_an_error_is_reported_once_per_version() -> None:
    world = _World()
    broken, other = _Table(world, "broken", rows=-1, seconds=0.1), _Table(world, "other", seconds=0.1)
    assert world.count(broken, other) == ["other"]
    world.count(broken, other)
    assert [event.name for event in world.events] == ["count_failed"]
    broken.at = SimpleNamespace(version=2)
    world.count(broken, other)
    assert len(world.events) == 2


def test_status_has_the_rows_of_a_table(start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_loops, "_COMPACTION_SECONDS", 0.1)
    monkeypatch.setattr(table_loops, "_SHORTEST_PAUSE", 0.1)
    shop = start_shop(SETUP)
    until(lambda: _rows(shop) == 40, "the count after the snapshot")
    shop.database.execute("DELETE FROM orders WHERE id < 11")
    until(lambda: _rows(shop) == 30, "the count after the change")


def _rows(shop: Shop) -> int | None:
    ((table,),) = (source.tables for source in shop.home.status().sources)
    return table.rows
