"""Tables that are copied in chunks beside a writer that never stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.control.churn import Churn, fill

from penstock.control.home import Home

PATIENCE = 400.0


@pytest.fixture
def chunked(database: Any, tmp_path: Path) -> Callable[[str], Home]:
    def make(tables: str, **options: Any) -> Home:
        database.execute(tables)
        home = Home(tmp_path / "home")
        home.create(database.url, "shop", snapshot="chunked", **options)
        return home

    return make


def assert_equal(home: Home, spark: SparkSession) -> None:
    verdicts = home.verify(spark, "shop")
    assert len(verdicts) == len(home.status().sources[0].tables)
    assert all(verdict.equal for verdict in verdicts), verdicts


@pytest.mark.timeout(1200)
def test_a_copy_in_chunks_beside_a_writer_ends_equal(
    database: Any, chunked: Callable[..., Home], spark: SparkSession
) -> None:
    home = chunked(fill(600), chunk_rows=200)
    with Churn(database.url, 600) as churn, home.run(spark, print) as running:
        running.wait_live(PATIENCE)
        assert_equal(home, spark)
        assert churn.transactions > 50
    assert {t.state for t in home.status().sources[0].tables} == {"live"}
