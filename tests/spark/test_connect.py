"""Batch reads over Spark Connect: a separate server, and a client without a JVM.

The packages of the client (pandas, gRPC) are no dependencies of Penstock: the test installs them from a lock file into
a separate folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.changelog.chunks import inserted
from tests.spark.connect_packages import free_port, install_client
from tests.spark.shop import Shop

from penstock.testing.waiting import PATIENCE

pytestmark = pytest.mark.deep

SERVER = """
import sys
from pyspark.sql import SparkSession
import penstock

settings = {
    "spark.master": "local[1]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": sys.argv[1],
}
penstock.configure(SparkSession.builder.config(map=settings)).getOrCreate()
print("ready", flush=True)
sys.stdin.read()
"""
CLIENT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(f"sc://127.0.0.1:{sys.argv[1]}").getOrCreate()
assert ".connect." in type(spark).__module__, type(spark)
rows = spark.read.format("penstock").options(home=sys.argv[2], source="shop", table="public.orders")
changes = rows.option("startingPosition", "0/A").load()
print(changes.count(), [row.after.id for row in changes.filter("_lsn = '0/1E'").collect()])
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages of the client."""
    return install_client(tmp_path_factory.mktemp("connect"))


@pytest.fixture
def port() -> Iterator[int]:
    found = free_port()
    command = [sys.executable, "-c", SERVER, str(found)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield found
        server.communicate()


def test_changes_are_read_over_spark_connect(shop: Shop, packages: Path, port: int) -> None:
    shop.orders(inserted(20), inserted(30), inserted(30, 1))
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    client = [sys.executable, "-c", CLIENT, str(port), str(shop.home)]
    done = subprocess.run(client, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split(maxsplit=1) == ["3", "[30000, 30001]\n"]
