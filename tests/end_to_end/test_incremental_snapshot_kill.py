"""kill -9 during an incremental snapshot with concurrent writes: it resumes with the next chunk.

``PENSTOCK_KILL_RUNS`` is the number of runs; each is killed at random times before it completes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.catalog.states import TableState
from penstock.testing.waiting import until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.end_to_end.test_kill import wait_for_snapshot
from tests.engine.churn import Churn, fill

pytestmark = pytest.mark.deep

RUNS = int(os.environ.get("PENSTOCK_KILL_RUNS", "1"))
KILLS = 2
ROWS = 800


@pytest.fixture
def chunked_run(tmp_path: Path, database: Database) -> Iterator[Penstock]:
    database.execute(fill(ROWS))
    penstock.open(tmp_path / "home").create(
        database.url, "demo", snapshot="chunked", chunk_rows=100, chunk_pause="300 ms"
    )
    running = Penstock(tmp_path / "home", database.url)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.kill()


def chunks(home: Path) -> list[str]:
    """The Delta commits that contain chunks."""
    found = []
    for path in sorted((home / "lake" / "demo").glob("*/_delta_log/*.json")):
        info = json.loads(path.read_text().splitlines()[0]).get("commitInfo", {})
        if '"chunk"' in info.get("userMetadata", ""):
            found.append(str(path))
    return found


def is_copied(home: Path) -> bool:
    """Whether all tables are live: after a truncate, that may take no further chunk."""
    states = [table.state for source in penstock.open(home).status().sources for table in source.tables]
    return bool(states) and all(state == TableState.LIVE for state in states)


def wait_for_chunks(running: Penstock, more_than: int) -> None:
    """Wait for another chunk, or for the end of the snapshot."""

    def has_advanced() -> bool:
        running.require_running()
        return len(chunks(running.home)) > more_than or is_copied(running.home)

    until(has_advanced, f"more than {more_than} chunks: see {running.output}")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(1, RUNS + 1))
def test_snapshot_resumes_after_a_kill(
    chunked_run: Penstock, database: Database, spark: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    database.execute("SELECT pg_create_logical_replication_slot('witness', 'test_decoding')")
    with Churn(database.url, ROWS, seed=seed, truncates=seed % 2 == 1, moves=seed % 4 < 1):
        for _ in range(KILLS):
            before = len(chunks(chunked_run.home))
            chunked_run.start()
            wait_for_chunks(chunked_run, before)
            time.sleep(rng.uniform(0, 4))
            chunked_run.kill()
        done = len(chunks(chunked_run.home))
        chunked_run.start()
        home = wait_for_snapshot(chunked_run)
        assert len(chunks(chunked_run.home)) >= done
        verdicts = home.verify(spark, "demo")
        assert len(verdicts) == 2
        assert [verdict for verdict in verdicts if not verdict.equal] == []
    assert chunked_run.interrupt() == 0
    assert "resuming the snapshot of" in chunked_run.output.read_text()
    messages = database.execute("SELECT data FROM pg_logical_slot_get_changes('witness', NULL, NULL)")
    database.execute("SELECT pg_drop_replication_slot('witness')")
    windows = {row[0].split("content:")[1] for row in messages if '"mark":"low"' in row[0]}
    opened = sum('"mark":"low"' in row[0] for row in messages)
    assert (
        len(windows) <= opened <= len(windows) + 2 * KILLS
    )  # two tables, and each kill may repeat one chunk per table
