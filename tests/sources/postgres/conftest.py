"""Captures against the shared server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.positions import Lsn


@pytest.fixture
def capture(database: Any, tmp_path: Path) -> Iterator[Callable[..., Capture]]:
    """Create captures of the test's database; they are stopped after the test."""
    made: list[Capture] = []

    def start(*, run: bool = True, parameters: str = "", **options: Any) -> Capture:
        log, name = tmp_path / f"{len(made)}.db", f"{database.name}_{len(made)}"
        capture = Capture(database.url + parameters, log, name, **options)
        made.append(capture)
        if run:
            capture.start()
        return capture

    yield start
    for capture in made:
        capture.failure = None
        capture.stop()


@pytest.fixture
def now(database: Any) -> Callable[[], Lsn]:
    """The server's WAL position: all commits so far are before it."""
    return lambda: Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
