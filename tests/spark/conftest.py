"""Fixtures for the tests of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.shop import Following, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    created = Shop(tmp_path / "home")
    with closing(created.writer):
        yield created


@pytest.fixture
def following(spark: SparkSession, shop: Shop, tmp_path: Path) -> Following:
    return Following(spark, shop, tmp_path / "checkpoint")
