"""Table rows through ``format("penstock")``: live tables as a batch, and the snapshot at the start of a stream."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.changelog.chunks import ITEMS, Row, chunk, inserted
from tests.changelog.test_interface import WIDER
from tests.changelog.test_retention import later, moment, publish
from tests.spark.shop import Following, Shop, ids, read, table_error

from penstock.errors import TransientError
from penstock.model import FROM, GONE, UNCHANGED, Image, TableSchema
from penstock.positions import Lsn
from penstock.spark.datasource import PenstockDataSource

FAR = datetime(2200, 1, 1, tzinfo=UTC)


def rows(spark: SparkSession, shop: Shop, **options: str) -> list[tuple[int, str]]:
    return sorted(tuple(row) for row in read(spark, shop.options(rows="live", **options)).collect())


def test_live_table_is_its_base_plus_the_log_tail(spark: SparkSession, shop: Shop) -> None:
    shop.orders(Row(20, 0, Image.INSERTED, (1, "lost in the base")), durable=20)
    shop.base(spark, [(1, "a"), (2, "b"), (3, "c")], at=20)
    assert rows(spark, shop) == [(1, "a"), (2, "b"), (3, "c")]
    shop.orders(
        Row(30, 0, Image.UPDATED, (1, "A")),
        Row(30, 1, Image.DELETED_KEY, (2, None)),
        Row(31, 0, Image.INSERTED, (4, "d")),
        Row(40, 0, Image.BEFORE_KEY, (3, None)),
        Row(40, 0, Image.UPDATED, (5, None), (1,)),
    )
    assert rows(spark, shop) == [(1, "A"), (4, "d"), (5, "c")]
    assert rows(spark, shop, asOf=str(Lsn(31))) == [(1, "A"), (3, "c"), (4, "d")]
    assert rows(spark, shop, asOf=str(Lsn(29))) == [(1, "a"), (2, "b"), (3, "c")]
    shop.orders(Row(50, 0, Image.TRUNCATE, None), Row(50, 1, Image.INSERTED, (9, "z")))
    assert rows(spark, shop) == [(9, "z")]


@pytest.mark.deep
def test_merged_base_with_deleted_rows(spark: SparkSession, shop: Shop) -> None:
    table = shop.base(spark, [(n, "old") for n in range(100)], at=20)
    net = spark.createDataFrame([(n, "new", n % 2 == 0) for n in range(50)], f"id bigint, name string, {GONE} boolean")
    unknown = net.selectExpr(
        GONE, f"cast(null as array<int>) {UNCHANGED}", f"cast(null as struct<id:bigint>) {FROM}", "id", "name"
    )
    table.merge(unknown, Lsn(30))
    shop.note(table)
    shop.orders(durable=40)
    found = rows(spark, shop)
    assert len(found) == 75
    assert rows(spark, shop, asOf=str(Lsn(29))) == [(n, "old") for n in range(100)]
    assert found == sorted(tuple(row) for row in table.at(table.version() or 0).select("id", "name").collect())


def test_key_is_looked_up_in_base_and_tail(spark: SparkSession, shop: Shop) -> None:
    shop.base(spark, [(n, f"n{n}") for n in range(1000)], at=20)
    shop.orders(Row(30, 0, Image.UPDATED, (7, "seven")), Row(30, 1, Image.INSERTED, (2000, "new")))
    live = read(spark, shop.options(rows="live"))
    assert [tuple(r) for r in live.filter("id = 7").collect()] == [(7, "seven")]
    assert [tuple(r) for r in live.filter("id in (8, 2000)").orderBy("id").collect()] == [(8, "n8"), (2000, "new")]
    assert live.filter("id = 5000").count() == 0
    assert live.filter("id > 990 and name like 'n9%'").count() == 9


def test_keyless_table_loses_as_many_copies_as_were_deleted(spark: SparkSession, shop: Shop) -> None:
    keyless = TableSchema(ITEMS.table, ITEMS.columns, ())
    shop.writer.define(keyless, Lsn(10))
    shop.base(spark, [(1, "x")] * 3 + [(2, "y")], at=20, schema=keyless)
    change = [Row(30, 0, Image.DELETED, (1, "x")), Row(30, 1, Image.INSERTED, (2, "y"))]
    shop.writer.publish([chunk(keyless, change, 2)], Lsn(30), committed_at=30)
    assert rows(spark, shop, table="public.items") == [(1, "x"), (1, "x"), (2, "y"), (2, "y")]


def test_earliest_is_a_snapshot_followed_by_changes(spark: SparkSession, shop: Shop, following: Following) -> None:
    shop.base(spark, [(1, "a"), (2, "b")], at=20)
    shop.orders(Row(30, 0, Image.INSERTED, (3, "c")))
    assert following.run(startingPosition="earliest") == [[1, 2, 3]]
    shop.orders(Row(40, 0, Image.INSERTED, (4, "d")))
    assert following.run(startingPosition="earliest") == [[4]]
    frame = read(spark, shop.options())
    found = sorted((r._op, r._lsn, r._xid, r.after.id) for r in frame.collect())
    assert found == [("snapshot", "0/28", None, n) for n in (1, 2, 3, 4)]
    assert sorted(ids(frame)) == [1, 2, 3, 4]


@pytest.mark.deep
def test_snapshot_in_several_batches_is_consistent(spark: SparkSession, shop: Shop, following: Following) -> None:
    """Files are read one by one; concurrent changes of the log and of the base have no effect."""
    table = shop.base(spark, [], at=20)
    for n in range(5):
        table.append(
            spark.createDataFrame([(10 * n + i, "x") for i in range(10)], "id bigint, name string"), Lsn(21 + n)
        )
    shop.note(table)
    shop.orders(Row(30, 0, Image.DELETED_KEY, (0, None)), Row(30, 1, Image.INSERTED, (100, "y")))

    def meanwhile(number: int) -> None:
        shop.orders(Row(40 + number, 0, Image.DELETED_KEY, (10 * number + 1, None)))
        table.append(spark.createDataFrame([(1000 + number, "z")], "id bigint, name string"), Lsn(40 + number))
        shop.note(table)

    following.on_batch = meanwhile
    batches = following.run(startingPosition="earliest", maxRowsPerTrigger="20")
    found = [id_ for batch in batches for id_ in batch]
    assert sorted(found) == [*range(1, 50), 100]
    assert len(batches) >= 3


def test_snapshot_of_several_tables_is_consistent(spark: SparkSession, shop: Shop) -> None:
    shop.base(spark, [(1, "a")], at=20)
    shop.base(spark, [(7, "i")], at=25, schema=ITEMS)
    shop.orders(inserted(22))
    shop.items(inserted(30))
    shop.orders(durable=40)
    found = read(spark, shop.options(table="public.orders,public.items", startingPosition="earliest")).collect()
    assert {row._lsn for row in found} == {"0/28"}
    assert sorted((r._table, r.after) for r in found) == [
        ("public.items", '{"id":30000,"name":"x"}'),
        ("public.items", '{"id":7,"name":"i"}'),
        ("public.orders", '{"id":1,"name":"a"}'),
        ("public.orders", '{"id":22000,"name":"x"}'),
    ]


def test_live_rows_during_the_initial_snapshot_are_a_transient_error(shop: Shop) -> None:
    source = PenstockDataSource(shop.options(rows="live"))
    with pytest.raises(TransientError, match="is not complete"):
        source.reader(source.schema()).partitions()


def test_failed_table_can_be_read_before_its_error(spark: SparkSession, shop: Shop) -> None:
    shop.base(spark, [(1, "a")], at=20)
    shop.orders(durable=30, errors=(table_error(30),))
    assert rows(spark, shop, asOf=str(Lsn(29))) == [(1, "a")]
    with pytest.raises(PySparkException, match="column name was dropped"):
        rows(spark, shop)


def test_table_as_of_a_time_before_columns_were_added(spark: SparkSession, shop: Shop) -> None:
    publish(shop.writer, (20, later(20)))
    shop.base(spark, [(1, "a")], at=20)
    shop.orders(durable=29)
    version = shop.writer.define(WIDER)
    wide = chunk(WIDER, [Row(30, 0, Image.INSERTED, (2, "b", "c", 7))], version)
    shop.writer.publish([wide], Lsn(30), committed_at=later(30))
    then = read(spark, shop.options(rows="live", asOf=moment(later(29.9)).isoformat()))
    assert (then.columns, [tuple(row) for row in then.collect()]) == (["id", "name"], [(1, "a")])
    now = read(spark, shop.options(rows="live", asOf="0/1E"))
    assert now.columns == ["id", "name", "note", "size"]
    assert sorted(tuple(row) for row in now.collect()) == [(1, "a", "?", None), (2, "b", "c", 7)]


def test_table_before_its_initial_snapshot_is_an_error(spark: SparkSession, shop: Shop) -> None:
    shop.base(spark, [(1, "a")], at=20)
    shop.orders(durable=30)
    with pytest.raises(
        PySparkException, match=r"the snapshot of public\.orders is at 0/14: it cannot be read as of 0/13"
    ):
        rows(spark, shop, asOf=str(Lsn(19)))


def test_expired_history_is_an_error(spark: SparkSession, shop: Shop) -> None:
    table = shop.base(spark, [(1, "a")], at=20)
    shop.orders(inserted(30), inserted(40))
    table.append(spark.createDataFrame([(30000, "x")], "id bigint, name string"), Lsn(30))
    shop.note(table)
    with closing(shop.log.reader()) as log:
        log.set_lease("me", Lsn(30))
    shop.writer.retain(FAR)
    assert rows(spark, shop) == [(1, "a"), (30000, "x"), (40000, "x")]
    with pytest.raises(PySparkException, match="begins at 0/1E"):
        rows(spark, shop, asOf=str(Lsn(25)))
