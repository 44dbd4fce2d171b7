"""``format("penstock")`` as a stream: offsets, restarts, limits, pins."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.changelog.chunks import ORDERS, Row, chunk, inserted
from tests.spark.shop import Following, Shop, broken

from penstock.changelog.interface import StagedCommit
from penstock.model import Image, TableSchema
from penstock.positions import Lsn


def test_stop_and_start_again_gives_every_change_once(shop: Shop, following: Following) -> None:
    shop.orders(inserted(20), inserted(30))
    shop.orders(inserted(40), inserted(40, 1))
    assert following.run(startingPosition="0/A") == [[20000, 30000, 40000, 40001]]
    assert following.run(startingPosition="0/A") == []
    shop.items(inserted(50))
    assert following.run(startingPosition="0/A") == []
    shop.orders(inserted(60))
    assert following.run(startingPosition="0/A") == [[60000]]


def test_a_source_made_anew_under_the_same_checkpoint(spark: SparkSession, shop: Shop, following: Following) -> None:
    shop.orders(inserted(20))
    assert following.run(startingPosition="0/A") == [[20000]]
    shop.writer.close()
    shop.log.remove()
    shop.log.create(Lsn(100))
    shop.writer = shop.log.writer()
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
        query.awaitTermination(60)
    assert [batch for _, batch in following.batches] == [[20000]]
