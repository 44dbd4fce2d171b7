"""Fixtures for tests of homes at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.control.shop import PATIENCE, Shop

from penstock.control.home import Home


@pytest.fixture
def shop(database: Any, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., Shop]]:
    """Makes tables, captures them as the source `shop`, and runs that until the end of the test."""
    stack: list[Any] = []

    def start(tables: str, **options: Any) -> Shop:
        database.execute(tables)
        home = Home(tmp_path / "home")
        home.create(database.url, "shop", **options)
        said: list[str] = []
        context = home.run(spark, said.append)
        running = context.__enter__()
        stack.append(context)
        running.wait_live(PATIENCE)
        return Shop(home, database, spark, running, said)

    yield start
    for context in stack:
        context.__exit__(None, None, None)
