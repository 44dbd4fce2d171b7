"""``format("penstock")`` as a stream: offsets, restarts, limits, leases."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.changelog.chunks import ITEMS, ORDERS, Row, chunk, inserted
from tests.changelog.test_retention import dated
from tests.spark.shop import Following, InOneThread, Shop, read, table_error

from penstock.changelog.interface import StagedCommit
from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE

FAR = datetime(2200, 1, 1, tzinfo=UTC)


def test_restarted_query_gets_every_change_once(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20), inserted(30))
    shop.orders(inserted(40), inserted(40, 1))
    assert following.run(startingPosition="0/A") == [[20000, 30000, 40000, 40001]]
    assert following.run(startingPosition="0/A") == []
    shop.items(inserted(50))
    assert following.run(startingPosition="0/A") == []
    shop.orders(inserted(60))
    assert following.run(startingPosition="0/A") == [[60000]]


@pytest.mark.deep
def test_recreated_source_with_an_old_checkpoint_is_an_error(
    spark: SparkSession, shop: Shop, following: Following
) -> None:
    shop.orders(inserted(20))
    assert following.run(startingPosition="0/A") == [[20000]]
    shop.writer.close()
    shop.log.remove()
    shop.log.create(Lsn(100))
    shop.writer = InOneThread(shop.log)
    shop.writer.define(ORDERS)
    shop.orders(inserted(110))
    with pytest.raises(StreamingQueryException, match="changes after 0/14 were removed"):
        following.run(startingPosition="latest")


def test_a_column_is_added_while_a_stream_runs(shop: Shop, following: Following) -> None:
    """The query fails when a column is added; restarted from its checkpoint, it has the new column."""
    shop.orders(inserted(20))
    query = following.start(startingPosition="0/A")
    try:
        query.processAllAvailable()
        wider = TableSchema(ORDERS.table, ORDERS.columns.append(pa.field("note", pa.string())), ORDERS.key)
        version = shop.writer.define(wider)
        row = Row(30, 0, Image.INSERTED, (30000, "x", "new"))
        shop.writer.publish([chunk(wider, [row], version)], Lsn(30), committed_at=30)
        with pytest.raises(StreamingQueryException, match="changed its columns"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert [ids for _, ids in following.batches] == [[20000]]
    assert following.run(startingPosition="0/A") == [[30000]]


def test_a_running_stream(shop: Shop, following: Following) -> None:
    """It starts at the latest position; changes of other tables start no batch; a batch has complete transactions."""
    shop.orders(inserted(20))
    query = following.start()
    try:
        query.processAllAvailable()
        assert following.batches == [(0, [])], "Spark always starts with a batch"
        shop.items(inserted(30), inserted(40))
        shop.writer.stage(9, [chunk(ORDERS, [Row(-1, 0, Image.INSERTED, (1, "staged"))])])
        query.processAllAvailable()
        assert len(following.batches) == 1
        shop.writer.publish(
            [chunk(ORDERS, [inserted(60), inserted(60, 1)])], Lsn(60), staged={9: StagedCommit(Lsn(50), 50)}
        )
        query.processAllAvailable()
        assert following.batches[1:] == [(1, [1, 60000, 60001])]
    finally:
        query.stop()
    shop.orders(inserted(70))
    query = following.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert following.batches[1:] == [(1, [1, 60000, 60001]), (2, [70000])]


def test_stream_returns_changes_before_an_error_and_then_fails(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    shop.orders(durable=30, errors=(table_error(30),))
    query = following.start(startingPosition="0/A")
    with pytest.raises(StreamingQueryException, match="column name was dropped"):
        query.awaitTermination(int(PATIENCE))
    assert [batch for _, batch in following.batches] == [[20000]]


@pytest.mark.deep
def test_latest_is_resolved_by_the_first_batch(shop: Shop, following: Following) -> None:
    """Changes made while the query is stopped are not lost, although Spark requests the initial offset again."""
    shop.orders(inserted(20))
    assert following.run() == [[]]
    shop.orders(inserted(30))
    assert following.run() == [[30000]]


def test_start_at_a_time(shop: Shop, following: Following) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for n, lsn in enumerate((20, 30, 40)):
        at = round((later + timedelta(seconds=n)).timestamp() * 1e6)
        shop.writer.publish([dated(lsn, (lsn, at))], Lsn(lsn), committed_at=at)
    start = (later + timedelta(seconds=0.5)).isoformat()
    assert [batch for batch in following.run(startingPosition=start) if batch] == [[30000, 40000]]


def test_row_limit_never_splits_a_transaction(shop: Shop, following: Following) -> None:
    shop.orders(*(inserted(lsn, n) for lsn in (20, 21, 22) for n in range(3)))
    shop.orders(*(inserted(30, n) for n in range(10)))
    shop.orders(inserted(40), inserted(41), inserted(42))
    sizes = [len(batch) for batch in following.run(startingPosition="0/A", maxRowsPerTrigger="6")]
    assert sizes == [6, 3, 10, 3]
    assert sorted(id_ for _, batch in following.batches for id_ in batch) == [
        *(lsn * 1000 + n for lsn in (20, 21, 22) for n in range(3)),
        *(30000 + n for n in range(10)),
        *(40000, 41000, 42000),
    ]


@pytest.mark.deep
def test_byte_limit(shop: Shop, following: Following) -> None:
    for lsn in range(20, 30):
        shop.orders(*(inserted(lsn, n) for n in range(100)))
    size = shop.log.reader().extent(ORDERS.table, Lsn(10), Lsn(20)).size
    sizes = [len(batch) for batch in following.run(startingPosition="0/A", maxBytesPerTrigger=str(3 * size))]
    assert sizes == [300, 300, 300, 100]


def test_available_now_ends_at_the_position_of_its_start(shop: Shop, following: Following) -> None:
    """Changes written while the query runs are read by the next run."""
    shop.orders(inserted(20), inserted(21))
    following.on_batch = lambda number: shop.orders(inserted(30 + number))
    assert following.run(startingPosition="0/A", maxRowsPerTrigger="1") == [[20000], [21000]]
    following.on_batch = None
    assert following.run(startingPosition="0/A", maxRowsPerTrigger="1") == [[30000], [31000]]


def test_query_has_a_lease_on_unread_history(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    query = following.start(startingPosition="0/A", reader="nightly")
    try:
        query.processAllAvailable()
        shop.orders(inserted(30))
        query.processAllAvailable()
    finally:
        query.stop()
    shop.orders(inserted(40))
    with closing(shop.log.reader()) as log:
        (lease,) = log.leases()
        assert (lease.reader, lease.expires) == ("reader nightly", None)
        assert 20 <= lease.at <= 30
        assert shop.writer.retain(FAR).valid == lease.at
    assert following.run(startingPosition="0/A", reader="nightly") == [[40000]]


@pytest.mark.deep
def test_query_that_was_stopped_too_long_is_an_error(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    assert following.run(startingPosition="0/A") == [[20000]]
    with closing(shop.log.reader()) as log:
        for lease in log.leases():
            log.set_lease(lease.reader, None)
    shop.orders(inserted(30))
    shop.writer.retain(FAR)
    with pytest.raises(StreamingQueryException, match=r"(?s)were removed.*new checkpoint.*option `reader`"):
        following.run(startingPosition="0/A")


def test_several_tables_advance_together(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    seen: list[list[tuple[str, str, str | None]]] = []

    def record(rows: DataFrame, number: int) -> None:
        seen.append(sorted((r._table, r._lsn, r.after) for r in rows.collect()))

    both = shop.options(table="public.orders, public.items", startingPosition="0/A", maxRowsPerTrigger="2")
    for lsn in (20, 30):
        shop.writer.publish([chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])], Lsn(lsn), committed_at=lsn)
    rows = spark.readStream.format("penstock").options(**both).load()
    assert rows.columns[0] == "_table"
    writer = rows.writeStream.foreachBatch(record).option("checkpointLocation", str(tmp_path / "both"))
    assert writer.trigger(availableNow=True).start().awaitTermination(int(PATIENCE))
    assert seen == [
        [(f"public.{name}", str(Lsn(lsn)), f'{{"id":{lsn * 1000},"name":"x"}}') for name in ("items", "orders")]
        for lsn in (20, 30)
    ]


def test_updates_add_up(spark: SparkSession, shop: Shop) -> None:
    shop.orders(
        inserted(20),
        Row(30, 0, Image.BEFORE, (20000, "x")),
        Row(30, 0, Image.UPDATED, (20000, "y")),
        Row(40, 0, Image.DELETED, (20000, "y")),
    )
    found = read(spark, shop.options(rows="updates", startingPosition="0/A"))
    assert found.columns == ["id", "name", "_diff", "_lsn", "_ordinal", "_xid", "_committed_at"]
    rows = [tuple(row) for row in found.select("name", "_diff", "_lsn").orderBy("_lsn", "_diff").collect()]
    assert rows == [("x", 1, "0/14"), ("x", -1, "0/1E"), ("y", 1, "0/1E"), ("y", -1, "0/28")]
    shop.orders(Row(50, 0, Image.DELETED_KEY, (1, None)))
    with pytest.raises(PySparkException, match=r'(?s)ALTER TABLE "public"\."orders" REPLICA IDENTITY FULL'):
        read(spark, shop.options(rows="updates", startingPosition="0/A")).collect()


def test_invalid_stream_options_are_rejected(spark: SparkSession, shop: Shop) -> None:
    wrong = {
        "rows": ("live", "rows=live is not valid for a stream"),
        "endingPosition": ("0/20", "option endingPosition is not valid for a stream"),
        "asOf": ("0/20", "option asOf is not valid with rows=changes"),
    }
    for options, message in (({name: value}, message) for name, (value, message) in wrong.items()):
        with pytest.raises(PySparkException, match=message):
            query = spark.readStream.format("penstock").options(**shop.options(**options)).load()
            query.writeStream.format("noop").start().processAllAvailable()


@pytest.mark.deep
def test_progress_reports_the_latest_offset(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    query = following.start(startingPosition="0/A")
    try:
        query.processAllAvailable()
        shop.orders(inserted(30))
        query.processAllAvailable()
        (source,) = next(p for p in query.recentProgress if p["batchId"] == 1)["sources"]
        offsets = [json.loads(source[name]) for name in ("startOffset", "endOffset", "latestOffset")]
        assert offsets == [{"lsn": "0/14"}, {"lsn": "0/1E"}, {"lsn": "0/1E"}]
        assert source["numInputRows"] == 1
    finally:
        query.stop()
