"""Fixtures for tests of running homes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.shop import Shop, running_shop

from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables


@pytest.fixture
def start_shop(database: Any, tmp_path: Path, in_process: None) -> Iterator[Callable[..., Shop]]:
    """Creates tables, captures them as source `shop` into tables in memory, and runs the home until the test ends."""
    with shops(tmp_path / "home", database, MemoryTables()) as start:
        yield start


@pytest.fixture
def start_spark_shop(
    database: Any, tmp_path: Path, spark: SparkSession, in_process: None
) -> Iterator[Callable[..., Shop]]:
    """The same with Delta tables in Spark. Each feature of the control plane has at least one test with it."""
    with shops(tmp_path / "home", database, SparkTables(spark)) as start:
        yield start


@contextmanager
def shops(home: Path, database: Any, store: TableStore) -> Iterator[Callable[..., Shop]]:
    with ExitStack() as stack:

        def start(setup: str, **options: Any) -> Shop:
            return stack.enter_context(running_shop(home, database, store, setup, **options))

        yield start
