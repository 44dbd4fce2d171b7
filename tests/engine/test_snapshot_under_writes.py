"""Snapshots of both kinds, with a continuous writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.churn import Churn, fill

from penstock.home import Home
from penstock.testing.waiting import PATIENCE, until


def assert_equal(home: Home, spark: SparkSession) -> None:
    verdicts = home.verify(spark, "shop")
    assert len(verdicts) == len(home.status().sources[0].tables)
    assert all(verdict.equal for verdict in verdicts), verdicts


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("snapshot", ["parallel", "chunked"])
def test_snapshot_under_concurrent_writes_equals_upstream(
    database: Any, tmp_path: Path, spark: SparkSession, snapshot: str
) -> None:
    database.execute(fill(600))
    home = Home(tmp_path / "home")
    home.create(database.url, "shop", snapshot=snapshot, chunk_rows=200)
    with Churn(database.url, 600) as churn, home.run(spark, print) as running:
        running.wait_live(PATIENCE)
        assert_equal(home, spark)
        assert churn.transactions > 50
    assert {table.state for table in home.status().sources[0].tables} == {"live"}


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_incremental_snapshot_reports_tables_that_it_cannot_copy(
    database: Any, tmp_path: Path, spark: SparkSession
) -> None:
    """An empty table, one row, no key, and a column that is added during the snapshot."""
    database.execute(
        "CREATE TABLE empty (id int PRIMARY KEY); CREATE TABLE one (id int PRIMARY KEY); INSERT INTO one VALUES (1);"
        "CREATE TABLE keyless (id int); ALTER TABLE keyless REPLICA IDENTITY FULL;"
        "CREATE TABLE wide (id int PRIMARY KEY, v text); INSERT INTO wide SELECT n, 'v' FROM generate_series(1, 40) n"
    )
    home = Home(tmp_path / "home")
    home.create(database.url, "shop", snapshot="chunked", chunk_rows=10, chunk_pause="500 ms")
    with home.run(spark, print) as running:
        until(lambda: "shop.wide" in home.copied("shop"), "the first chunk")
        database.execute("ALTER TABLE wide ADD COLUMN added int NOT NULL DEFAULT 7")
        database.execute("UPDATE wide SET added = id WHERE id % 3 = 0; INSERT INTO wide VALUES (100, 'new', 8)")
        running.wait_live(PATIENCE)
        states = {table.upstream: table for table in home.status().sources[0].tables}
        assert {name: table.state for name, table in states.items()} == {
            "public.empty": "live",
            "public.keyless": "failed",
            "public.one": "live",
            "public.wide": "live",
        }
        assert "parallel" in str(states["public.keyless"].hint)
        database.execute("INSERT INTO empty VALUES (1); UPDATE wide SET v = 'w' WHERE id < 3")
        verdicts = {verdict.table: verdict for verdict in home.verify(spark, "shop")}
        assert [name for name, verdict in verdicts.items() if not verdict.equal] == ["public.keyless"]
        assert home.live(spark).table("shop.wide").columns == ["id", "v", "added"]
