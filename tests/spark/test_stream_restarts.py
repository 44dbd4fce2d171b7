"""A streaming query that is stopped and restarted at random points gets every change exactly once, by batch number.

``PENSTOCK_RESTARTS`` sets the number of restarts.
"""

from __future__ import annotations

import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests import seeds
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted
from tests.spark.shop import START, Shop

from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until

pytestmark = pytest.mark.deep

RESTARTS = int(os.environ.get("PENSTOCK_RESTARTS", "15"))


class Writer(threading.Thread):
    """Publishes transactions of random size for both tables, several at once, until stopped."""

    def __init__(self, shop: Shop, seed: int) -> None:
        super().__init__()
        self._shop = shop
        self._random = random.Random(seed)
        self._stop_event = threading.Event()
        self.written: dict[int, int] = {}
        """The number of rows per table of every transaction, by its position."""

    def run(self) -> None:
        at = START
        while not self._stop_event.wait(self._random.uniform(0, 0.1)):
            lsns = []
            for _ in range(self._random.randint(1, 4)):
                at += self._random.randint(1, 50)
                self.written[at] = self._random.randint(1, 9)
                lsns.append(at)
            rows = [inserted(lsn, n) for lsn in lsns for n in range(self.written[lsn])]
            self._shop.writer.publish([chunk(ORDERS, rows), chunk(ITEMS, rows)], Lsn(at), committed_at=at)

    def stop(self) -> None:
        self._stop_event.set()
        self.join()


def has_progressed(query: StreamingQuery, batches: list[int], before: int) -> bool:
    return len(batches) > before or not query.isActive


@pytest.mark.timeout(1500)
def test_restarts(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    seed = seeds.seed()
    points = random.Random(seed)
    batches: dict[int, list[tuple[str, str, int]]] = {}
    seen_batches: list[int] = []

    def record(rows: DataFrame, number: int) -> None:
        found = sorted(
            (row._table, row._lsn, row._ordinal) for row in rows.select("_table", "_lsn", "_ordinal").collect()
        )
        assert batches.get(number, found) == found, f"batch {number} was repeated with other rows"
        batches[number] = found
        seen_batches.append(number)

    options = shop.options(table="public.orders,public.items", startingPosition="0/A", maxRowsPerTrigger="100")
    rows = spark.readStream.format("penstock").options(**options).load()
    rest = spark.readStream.format("penstock").options(**options | {"maxRowsPerTrigger": "1000000"}).load()
    stream = rows.writeStream.foreachBatch(record).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = Writer(shop, seed)
    writer.start()
    try:
        for _ in range(RESTARTS):
            before = len(seen_batches)
            query = stream.trigger(processingTime="0 seconds").start()
            until(partial(has_progressed, query, seen_batches, before), "the first batch")
            time.sleep(points.uniform(0, 0.4))  # the random point of the stop
            query.stop()
    finally:
        writer.stop()
    last = rest.writeStream.foreachBatch(record).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert last.trigger(availableNow=True).start().awaitTermination(int(PATIENCE))

    seen = [change for number in sorted(batches) for change in batches[number]]
    wanted = [
        (table, str(Lsn(lsn)), ordinal)
        for table in ("public.items", "public.orders")
        for lsn, count in writer.written.items()
        for ordinal in range(count)
    ]
    assert sorted(seen) == sorted(wanted), f"seed {seed}"
    numbers: dict[str, set[int]] = {}
    for number, changes in batches.items():
        for _, lsn, _ in changes:
            numbers.setdefault(lsn, set()).add(number)
    assert all(len(of) == 1 for of in numbers.values()), "a transaction was divided between batches"
    assert len(batches) > RESTARTS / 5
