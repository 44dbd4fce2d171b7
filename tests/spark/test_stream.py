"""``format("penstock")`` as a stream: offsets, restarts, limits, pins."""

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
from tests.spark.shop import Following, InOneThread, Shop, broken, read

from penstock.changelog.interface import StagedCommit
from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE

FAR = datetime(2200, 1, 1, tzinfo=UTC)


def test_stop_and_start_again_gives_every_change_once(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20), inserted(30))
    shop.orders(inserted(40), inserted(40, 1))
    assert following.run(startingPosition="0/A") == [[20000, 30000, 40000, 40001]]
    assert following.run(startingPosition="0/A") == []
    shop.items(inserted(50))
    assert following.run(startingPosition="0/A") == []
    shop.orders(inserted(60))
    assert following.run(startingPosition="0/A") == [[60000]]


@pytest.mark.deep
def test_a_source_made_anew_under_the_same_checkpoint(spark: SparkSession, shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    assert following.run(startingPosition="0/A") == [[20000]]
    shop.writer.close()
    shop.log.remove()
    shop.log.create(Lsn(100))
    shop.writer = InOneThread(shop.log)
    shop.writer.define(ORDERS)
    shop.orders(inserted(110))
    with pytest.raises(StreamingQueryException, match="what came after 0/14 is no longer in it"):
        following.run(startingPosition="latest")


def test_a_column_is_added_while_a_stream_runs(shop: Shop, following: Following) -> None:
    """The query keeps the columns that it began with; started again, from its checkpoint, it has the new one."""
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
    """From now on; transactions of other tables start no batch; a batch has whole transactions."""
    shop.orders(inserted(20))
    query = following.start()
    try:
        query.processAllAvailable()
        assert following.batches == [(0, [])], "Spark begins with a batch in any case"
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


def test_a_stream_gives_all_before_an_error_and_then_tells_it(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    shop.orders(durable=30, errors=(broken(30),))
    query = following.start(startingPosition="0/A")
    with pytest.raises(StreamingQueryException, match="column name was dropped"):
        query.awaitTermination(int(PATIENCE))
    assert [batch for _, batch in following.batches] == [[20000]]


@pytest.mark.deep
def test_latest_is_fixed_by_the_first_batch(shop: Shop, following: Following) -> None:
    """What comes while the query is away is not lost, though Spark asks anew where to begin."""
    shop.orders(inserted(20))
    assert following.run() == [[]]
    shop.orders(inserted(30))
    assert following.run() == [[30000]]


def test_from_a_time(shop: Shop, following: Following) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for n, lsn in enumerate((20, 30, 40)):
        at = round((later + timedelta(seconds=n)).timestamp() * 1e6)
        shop.writer.publish([dated(lsn, (lsn, at))], Lsn(lsn), committed_at=at)
    start = (later + timedelta(seconds=0.5)).isoformat()
    assert [batch for batch in following.run(startingPosition=start) if batch] == [[30000, 40000]]


def test_a_limit_of_rows_never_divides_a_transaction(shop: Shop, following: Following) -> None:
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
def test_a_limit_of_bytes(shop: Shop, following: Following) -> None:
    for lsn in range(20, 30):
        shop.orders(*(inserted(lsn, n) for n in range(100)))
    size = shop.log.reader().extent(ORDERS.table, Lsn(10), Lsn(20)).size
    sizes = [len(batch) for batch in following.run(startingPosition="0/A", maxBytesPerTrigger=str(3 * size))]
    assert sizes == [300, 300, 300, 100]


def test_available_now_ends_where_it_began(shop: Shop, following: Following) -> None:
    """What is written while the query runs is for the next one."""
    shop.orders(inserted(20), inserted(21))
    following.on_batch = lambda number: shop.orders(inserted(30 + number))
    assert following.run(startingPosition="0/A", maxRowsPerTrigger="1") == [[20000], [21000]]
    following.on_batch = None
    assert following.run(startingPosition="0/A", maxRowsPerTrigger="1") == [[30000], [31000]]


def test_a_query_holds_what_it_has_not_read(shop: Shop, following: Following) -> None:
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
        (pin,) = log.pins()
        assert (pin.reader, pin.expires) == ("reader nightly", None)
        assert 20 <= pin.at <= 30
        assert shop.writer.retain(FAR).valid == pin.at
    assert following.run(startingPosition="0/A", reader="nightly") == [[40000]]


@pytest.mark.deep
def test_a_query_that_was_away_too_long(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    assert following.run(startingPosition="0/A") == [[20000]]
    with closing(shop.log.reader()) as log:
        for pin in log.pins():
            log.pin(pin.reader, None)
    shop.orders(inserted(30))
    shop.writer.retain(FAR)
    with pytest.raises(StreamingQueryException, match=r"(?s)no longer in it.*another checkpoint.*option `reader`"):
        following.run(startingPosition="0/A")


def test_several_tables_move_together(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    seen: list[list[tuple[str, str, str | None]]] = []

    def remember(rows: DataFrame, number: int) -> None:
        seen.append(sorted((r._table, r._lsn, r.after) for r in rows.collect()))

    both = shop.options(table="public.orders, public.items", startingPosition="0/A", maxRowsPerTrigger="2")
    for lsn in (20, 30):
        shop.writer.publish([chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])], Lsn(lsn), committed_at=lsn)
    rows = spark.readStream.format("penstock").options(**both).load()
    assert rows.columns[0] == "_table"
    writer = rows.writeStream.foreachBatch(remember).option("checkpointLocation", str(tmp_path / "both"))
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


def test_what_a_stream_cannot(spark: SparkSession, shop: Shop) -> None:
    wrong = {
        "rows": ("live", "no rows=live"),
        "endingPosition": ("0/20", "no endingPosition"),
        "asOf": ("0/20", "rows=changes has no option asOf"),
    }
    for options, said in (({name: value}, said) for name, (value, said) in wrong.items()):
        with pytest.raises(PySparkException, match=said):
            query = spark.readStream.format("penstock").options(**shop.options(**options)).load()
            query.writeStream.format("noop").start().processAllAvailable()


@pytest.mark.deep
def test_progress_tells_how_far_the_log_is(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    query = following.start(startingPosition="0/A")
    try:
        query.processAllAvailable()
        shop.orders(inserted(30))
        query.processAllAvailable()
        (source,) = next(p for p in query.recentProgress if p["batchId"] == 1)["sources"]
        told = [json.loads(source[name]) for name in ("startOffset", "endOffset", "latestOffset")]
        assert told == [{"lsn": "0/14"}, {"lsn": "0/1E"}, {"lsn": "0/1E"}]
        assert source["numInputRows"] == 1
    finally:
        query.stop()
