"""Compaction schedule of base tables: seldom, concurrent with apply, and without blocking other tables."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.shop import Shop, running_shop

from penstock.engine import compaction, table_loops
from penstock.engine.compaction import COMMITS, FIRST_VACUUM_SECONDS, VACUUM_SECONDS, Schedule
from penstock.errors import TransientError
from penstock.layout import base_path
from penstock.positions import Lsn
from penstock.tables import compaction as table_compaction
from penstock.tables import spark_tables
from penstock.tables.base_state import State
from penstock.tables.compaction import DeltaCompaction
from penstock.tables.log_tail import read_tail
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE orders (id bigint PRIMARY KEY, n bigint);
CREATE TABLE items (id bigint PRIMARY KEY, n bigint);
CREATE TABLE quiet (id bigint PRIMARY KEY);
INSERT INTO orders SELECT n, n FROM generate_series(1, 1000) n;
"""


def test_rewrite_is_due_after_some_commits_and_a_pause() -> None:
    schedule = Schedule(started=0.0)
    assert not schedule.rewrite_is_due(COMMITS - 1, 1.0)
    assert schedule.rewrite_is_due(COMMITS, 1.0)
    schedule.rest(1.0, 11.0)
    assert not schedule.rewrite_is_due(COMMITS, 110.0)
    assert schedule.rewrite_is_due(COMMITS, 111.0), "one step may not be enough"
    schedule.examined = COMMITS
    assert not schedule.rewrite_is_due(2 * COMMITS - 1, 1000.0)


def test_vacuum_is_due_once_an_hour() -> None:
    schedule = Schedule(started=100.0)
    assert not schedule.vacuum_is_due(99.0 + FIRST_VACUUM_SECONDS)
    assert schedule.vacuum_is_due(100.0 + FIRST_VACUUM_SECONDS)
    schedule.vacuumed = 1000.0
    assert not schedule.vacuum_is_due(999.0 + VACUUM_SECONDS)
    assert schedule.vacuum_is_due(1000.0 + VACUUM_SECONDS)


@pytest.mark.deep
def test_compaction_runs_concurrently_with_apply(
    tmp_path: Path, database: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_loops, "_COMPACTION_SECONDS", 0.2)
    monkeypatch.setattr(table_loops, "_SHORTEST_PAUSE", 0.2)
    monkeypatch.setenv("PENSTOCK_APPLY_REST", "0")
    monkeypatch.setattr(compaction, "COMMITS", 2)
    monkeypatch.setattr(compaction, "_REST", 0.0)
    monkeypatch.setattr(compaction, "_SHORTEST_REST", 0.1)
    monkeypatch.setattr(compaction, "FIRST_VACUUM_SECONDS", 0.0)
    monkeypatch.setattr(table_compaction, "_MANY_SMALL", 1)
    attempts, busy, proceed = list[str](), threading.Event(), threading.Event()
    rewrite = DeltaCompaction.rewrite

    def rewrite_with_obstacles(table_compaction_step: DeltaCompaction, at: State) -> int:
        """For orders, the first attempt fails, and the second blocks."""
        if at.schema.table.name == "orders":
            attempts.append("orders")
            if len(attempts) == 1:
                message = "no space left"
                raise TransientError(message)
            busy.set()
            proceed.wait()
        return rewrite(table_compaction_step, at)

    reads = list[str]()

    def read_tail_counted(*arguments: Any) -> Any:
        reads.append(arguments[2].table.name)
        return read_tail(*arguments)

    monkeypatch.setattr(DeltaCompaction, "rewrite", rewrite_with_obstacles)
    monkeypatch.setattr(spark_tables, "read_tail", read_tail_counted)
    with running_shop(tmp_path / "home", database, spark, SETUP) as shop:
        statements = "UPDATE orders SET n = %s WHERE id = 7", "INSERT INTO items VALUES (%s, 1)"
        try:
            with shop.writing(*statements):
                until(busy.is_set, "compaction of orders")
                before = version(shop, "items")
                until(lambda: version(shop, "items") > before, "apply of items meanwhile")
        finally:
            proceed.set()
        until(lambda: is_compacted(shop, "orders"), "compaction of orders to complete")
        assert any("compaction of public.orders failed, will retry: no space left" in line for line in shop.reported)
        assert shop.state("orders") == "live"
        assert shop.equal()
    assert reads.count("quiet") <= 1 < reads.count("items"), "apply touches only tables that have changed"


def version(shop: Shop, table: str) -> int:
    found = shop.catalog.bases.newest("shop", table, Lsn((1 << 63) - 1))
    return found.version if found else -1


def is_compacted(shop: Shop, table: str) -> bool:
    log = base_path(shop.home.path, "shop", table) / "_delta_log"
    return any('"operation":"OPTIMIZE"' in commit.read_text() for commit in log.glob("*.json"))
