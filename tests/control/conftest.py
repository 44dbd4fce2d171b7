"""Fixtures for tests of homes at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.control.shop import Shop, running_shop


@pytest.fixture
def shop(database: Any, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., Shop]]:
    """Makes tables, captures them as the source `shop`, and runs that until the end of the test."""
    with ExitStack() as stack:

        def start(made: str, **options: Any) -> Shop:
            return stack.enter_context(running_shop(tmp_path / "home", database, spark, made, **options))

        yield start
