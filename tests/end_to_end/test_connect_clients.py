"""Clients of Spark Connect read live tables of a running home by name, while transfers commit.

A client runs in its own process, with the packages of Spark Connect and without a JVM. Every query reads accounts and
transfers at one position, or the invariants of the bank do not hold.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.demo.load import Load
from penstock.demo.scenario import bank_look
from penstock.layout import connect_token_path
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.end_to_end.test_kill import wait_for_snapshot
from tests.spark.connect_packages import free_port, install_client

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]

CLIENT = '''
import sys
from decimal import Decimal
from pyspark.sql import SparkSession, functions as F

port, token, total, query = int(sys.argv[1]), sys.argv[2], Decimal(sys.argv[3]), sys.argv[4]
spark = SparkSession.builder.remote(f"sc://localhost:{port}/;token={token}").getOrCreate()
assert ".connect." in type(spark).__module__, type(spark)
assert {table.name for table in spark.catalog.listTables("demo")} >= {"accounts", "transfers"}


def check(transfers):
    """Read the bank in SQL, and in DataFrames of which Spark analyzes parts on their own."""
    (row,) = spark.sql(query).collect()
    assert (row.total, row.broken) == (total, 0), row
    accounts = spark.table("demo.accounts").withColumns({"counted": F.col("transfer_count")}).na.fill(0)
    assert "counted" in accounts.schema.names
    made = spark.table("demo.transfers").na.replace(-1, -1).dropDuplicates(["id"])
    both = accounts.agg(F.sum("counted").alias("a")).join(made.agg(F.count("*").alias("t")), F.lit(True))
    ((counted, found),) = both.collect()
    assert counted == 2 * found, (counted, found)
    assert transfers <= row.transfers <= found, "later queries see the same or later transactions"
    return found


seen = [0]
for _ in range(int(sys.argv[5])):
    seen.append(check(seen[-1]))
assert len(set(seen)) > 2, seen
spark.conf.set("penstock.as_of", sys.argv[6])
assert len({tuple(spark.sql(query).collect()[0]) for _ in range(2)}) == 1
assert spark.sql(query).collect()[0].transfers <= seen[1]
spark.conf.unset("penstock.as_of")
for write in ("INSERT INTO demo.accounts SELECT * FROM demo.accounts", "DELETE FROM demo.transfers"):
    try:
        spark.sql(write).collect()
    except Exception:
        pass
    else:
        raise AssertionError(write)
print("seen", *seen)
'''


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages of the client."""
    return install_client(tmp_path_factory.mktemp("connect"))


def client(packages: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)


def test_clients_see_whole_transactions(penstock_run: Penstock, shop_and_bank: Database, packages: Path) -> None:
    port = free_port()
    penstock_run.options = (
        "--schema=bank",
        "--retain-history=1 hour",
        "--connect",
        f"--connect-address=127.0.0.1:{port}",
    )
    penstock_run.start()
    home = wait_for_snapshot(penstock_run)
    until(lambda: penstock_run.has_printed("Spark Connect: sc://localhost", 1), "the server to listen")
    path = connect_token_path(penstock_run.home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text(encoding="ascii").strip()
    assert token not in penstock_run.output.read_text(encoding="utf-8")
    ((total,),) = shop_and_bank.execute("SELECT sum(opening) FROM bank.accounts")
    first = home.frontiers("demo").durable
    query = bank_look("demo.accounts", "demo.transfers")
    load = Load(shop_and_bank.url, rate=40).start()
    try:
        done = client(packages, CLIENT, port, token, total, query, 3, first)
    finally:
        load.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = client(packages, CLIENT, port, "wrong", total, query, 1, first)
    assert wrong.returncode != 0
    assert "Invalid authentication token" in wrong.stderr
    assert penstock_run.interrupt() == 0
    assert "Spark Connect: unexpected" not in penstock_run.output.read_text(encoding="utf-8")
