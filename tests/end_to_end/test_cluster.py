"""The same user program runs locally with the embedded log, and on a cluster of two workers with Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.demo.load import Load
from penstock.home import open_home
from penstock.positions import Lsn
from penstock.testing.cluster import BRIEF, SparkCluster, start_cluster
from penstock.testing.kafka import start_kafka
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock

pytestmark = pytest.mark.deep

PROGRAM = Path(__file__).parent.parent.parent / "examples" / "follow_tables.py"
TABLES = "bank.accounts,bank.transfers"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with start_cluster(tmp_path / "cluster") as started:
        yield started


def follow(home: Path, folder: Path, master: str) -> dict[str, int]:
    """Run the program; return the row counts of the tables that it prints."""
    environment = {
        **os.environ,
        **BRIEF,
        "PYSPARK_SUBMIT_ARGS": f"--master {master} --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    arguments = [str(home), "demo", TABLES, str(folder / "checkpoint"), str(folder / "output")]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}


def replayed(output: Path) -> tuple[dict[str, dict[int, Any]], list[set[str]]]:
    """Apply all batches in order; return the tables, and the set of changed tables of each transaction in a batch."""
    tables: dict[str, dict[int, Any]] = {name: {} for name in TABLES.split(",")}
    touched: list[set[str]] = []
    for path in sorted(output.iterdir()):
        by_transaction: dict[int, set[str]] = defaultdict(set)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in sorted(rows, key=lambda r: (Lsn.parse(r["_lsn"]), r.get("_ordinal", -1))):
            after = json.loads(row["after"], parse_float=Decimal)
            tables[row["_table"]][after["id"]] = after
            if row["_op"] != "snapshot":
                by_transaction[row["_xid"]].add(row["_table"])
        touched += by_transaction.values()
    return tables, touched


def wait_until_live(penstock: Penstock) -> None:
    def live() -> bool:
        penstock.require_running()
        sources = open_home(penstock.home).status().sources
        return bool(sources and sources[0].tables) and all(table.state == "live" for table in sources[0].tables)

    until(live, f"live tables: see {penstock.output}")


def wait_for_position(penstock: Penstock, position: Lsn) -> None:
    until(lambda: open_home(penstock.home).frontiers("demo").durable >= position, f"the log to reach {position}")


def check(database: Database, penstock: Penstock, folder: Path, master: str) -> None:
    """Run the program under load, then once more; then compare its result with Postgres."""
    penstock.options += tuple(f"--table={name}" for name in TABLES.split(","))
    penstock.environment["PENSTOCK_APPLY_REST"] = "3"  # the program reads the log, and needs the cores
    penstock.start()
    wait_until_live(penstock)
    with Load(database.url, rate=30):
        first = follow(penstock.home, folder, master)
    assert set(first) == set(TABLES.split(","))
    wait_for_position(penstock, Lsn.parse(database.execute("SELECT pg_current_wal_lsn()::text")[0][0]))
    counts = follow(penstock.home, folder, master)
    tables, touched = replayed(folder / "output")
    for name, column in (("bank.accounts", "balance"), ("bank.transfers", "amount")):
        expected = dict(database.execute(f"SELECT id, {column} FROM {name}"))
        assert {key: row[column] for key, row in tables[name].items()} == expected
        assert counts[name] == len(expected)
    transfers = [names for names in touched if "bank.transfers" in names]
    assert len(transfers) > 20
    assert all(names == set(TABLES.split(",")) for names in transfers), "a transaction was split"
    assert penstock.interrupt() == 0


@pytest.mark.timeout(1500)
def test_local_with_the_embedded_log(shop_and_bank: Database, penstock_run: Penstock, tmp_path: Path) -> None:
    check(shop_and_bank, penstock_run, tmp_path, "local[2]")


@pytest.mark.timeout(1500)
def test_cluster_with_kafka(
    shop_and_bank: Database, penstock_run: Penstock, cluster: SparkCluster, tmp_path: Path
) -> None:
    with start_kafka(tmp_path / "kafka") as broker:
        penstock_run.options = ("--log", f"kafka://{broker.bootstrap}")
        check(shop_and_bank, penstock_run, tmp_path, cluster.master)
