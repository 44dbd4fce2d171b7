"""``format("penstock")`` over a change log that is written here: no Postgres, but real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.changelog.chunks import ITEMS, ORDERS, Row, chunk, inserted

from penstock.changelog.interface import StagedCommit
from penstock.changelog.sqlite.log import SqliteLog
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import TableError, UsageError
from penstock.layout import log_path
from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.spark import ranges
from penstock.spark.datasource import PenstockDataSource, PenstockOptions

START = 10


class Shop:
    """A home with one source, whose log is written by hand."""

    def __init__(self, home: Path) -> None:
        self.home = home
        SqliteLog(log_path(home, "shop")).create(Lsn(START))
        self.writer = SqliteLogWriter(log_path(home, "shop"))
        for schema in (ORDERS, ITEMS):
            self.writer.define(schema, Lsn(10))

    def orders(self, *rows: Row, durable: int = 0, errors: tuple[TableError, ...] = ()) -> None:
        """Publish changes of orders."""
        upto = Lsn(max([durable, *(row.lsn for row in rows)]))
        self.writer.publish([chunk(ORDERS, rows)] if rows else [], upto, committed_at=upto, errors=errors)

    def items(self, *rows: Row) -> None:
        """Publish changes of the other table."""
        self.writer.publish([chunk(ITEMS, rows)], Lsn(rows[-1].lsn), committed_at=rows[-1].lsn)

    def options(self, **options: str) -> dict[str, str]:
        return {"home": str(self.home), "source": "shop", "table": "public.orders", **options}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "home")
    with closing(made.writer):
        yield made


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("penstock").options(**options).load()


def ids(frame: DataFrame) -> list[int]:
    """The keys of inserted rows, in the order of the log."""
    return [row["after"]["id"] for row in sorted(frame.collect(), key=lambda row: (row["_xid"], row["_ordinal"]))]


def test_every_kind_of_change(spark: SparkSession, shop: Shop) -> None:
    shop.orders(
        Row(20, 0, Image.INSERTED, (1, "a")),
        Row(20, 1, Image.UPDATED, (1, "b")),
        Row(30, 0, Image.BEFORE, (1, "b")),
        Row(30, 0, Image.UPDATED, (1, "c")),
        Row(30, 1, Image.BEFORE_KEY, (1, None)),
        Row(30, 1, Image.UPDATED, (2, None), (1,)),
    )
    shop.orders(
        Row(40, 0, Image.DELETED_KEY, (2, None)), Row(40, 1, Image.TRUNCATE, None), Row(41, 0, Image.DELETED, (3, "d"))
    )
    frame = read(spark, shop.options(startingPosition="0/A"))
    assert frame.schema.simpleString() == (
        "struct<_op:string,_lsn:string,_ordinal:bigint,_xid:bigint,_committed_at:timestamp,_unchanged:array<string>,"
        "before:struct<id:bigint,name:string>,after:struct<id:bigint,name:string>>"
    )
    rows = sorted(frame.collect(), key=lambda row: (row["_xid"], row["_ordinal"]))
    found = [(r._op, r._lsn, r._ordinal, r._unchanged, *(s and tuple(s) for s in (r.before, r.after))) for r in rows]
    assert found == [
        ("insert", "0/14", 0, None, None, (1, "a")),
        ("update", "0/14", 1, None, None, (1, "b")),
        ("update", "0/1E", 0, None, (1, "b"), (1, "c")),
        ("update", "0/1E", 1, ["name"], (1, None), (2, None)),
        ("delete", "0/28", 0, None, (2, None), None),
        ("truncate", "0/28", 1, None, None, None),
        ("delete", "0/29", 0, None, (3, "d"), None),
    ]
    assert [row._xid for row in rows] == [21, 21, 31, 31, 41, 41, 42]
    micros = frame.selectExpr("unix_micros(_committed_at)").distinct().collect()
    assert {row[0] for row in micros} == {20, 30, 40, 41}


def test_ranges(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20), inserted(30))
    shop.orders(inserted(40), inserted(40, 1), inserted(50))

    def between(start: int | None, end: int | None) -> list[int]:
        given = {"startingPosition": start, "endingPosition": end}
        return ids(read(spark, shop.options(**{name: str(Lsn(at)) for name, at in given.items() if at is not None})))

    assert between(START, None) == [20000, 30000, 40000, 40001, 50000]
    assert between(20, 40) == [30000, 40000, 40001]
    assert between(35, 45) == [40000, 40001]
    assert between(40, 40) == between(45, 49) == between(50, None) == between(None, None) == []


def test_a_range_that_the_log_does_not_have(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20))
    with pytest.raises(PySparkException, match="the log begins at 0/A"):
        read(spark, shop.options(startingPosition="0/9")).collect()
    with pytest.raises(PySparkException, match="the log ends at 0/14"):
        read(spark, shop.options(startingPosition="0/A", endingPosition="0/15")).collect()


def test_several_tasks_give_every_row_once_and_in_order(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for lsn in range(20, 40):
        shop.orders(*(inserted(lsn, n) for n in range(50)))
    source = PenstockDataSource(shop.options(startingPosition="0/14", endingPosition="0/24"))
    reader = source.reader(source.schema())
    for task_bytes, tasks in ((1 << 20, 1), (6000, 6), (1, 16)):
        monkeypatch.setattr(ranges, "_TASK_BYTES", task_bytes)
        pieces = reader.partitions()
        assert abs(len(pieces) - tasks) <= 2
        batches: list[Any] = [batch for piece in pieces for batch in reader.read(piece)]
        found = [row["after"]["id"] for batch in batches for row in batch.to_pylist()]
        assert found == [lsn * 1000 + n for lsn in range(21, 37) for n in range(50)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingPositon": "0/1"}, "'startingPositon'.*Did you mean startingPosition"),
        ({"colour": "red"}, "'colour'.*Known are: home, source, table, rows, startingPosition, endingPosition"),
        ({"rows": "rainbow"}, "option rows of format penstock.*'changes'"),
        ({"startingPosition": "yesterday"}, "'yesterday' is not a position.*0?latest"),
        ({"table": "orders"}, "schema.table, not 'orders'.*public.orders"),
        ({"table": "public.order"}, "no table public.order.*It has: public.items, public.orders"),
        ({"source": "shp"}, "no source shp in .*penstock status"),
    ],
)
def test_wrong_options_without_spark(shop: Shop, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){said}"):
        source = PenstockDataSource(shop.options(**options))
        source.reader(source.schema()).partitions()


def test_names_of_options_in_any_case(shop: Shop) -> None:
    options = PenstockOptions.parse({"HOME": "h", "Source": "s", "tAble": "a.b", "STARTINGPOSITION": "0/1"})
    assert (options.home, options.source, options.table, options.startingposition) == ("h", "s", "a.b", "0/1")


def test_a_missing_option() -> None:
    with pytest.raises(UsageError, match="option table of format penstock"):
        PenstockOptions.parse({"home": "h", "source": "s"})


def test_what_a_user_sees_of_a_wrong_option(spark: SparkSession, shop: Shop) -> None:
    with pytest.raises(PySparkException, match="has no option 'startingpositon'\nDid you mean startingPosition"):
        read(spark, shop.options(startingPositon="0/1"))
    with pytest.raises(PySparkException, match=r"has no table public\.order"):
        read(spark, shop.options(table="public.order"))


def broken(lsn: int) -> TableError:
    return TableError("public.orders", lsn, "public.orders: column name was dropped", "Copy it again.")


def test_an_error_of_a_table_holds_from_its_lsn_on(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20))
    shop.orders(durable=30, errors=(broken(30),))
    shop.items(inserted(40))
    assert ids(read(spark, shop.options(startingPosition="0/A", endingPosition=str(Lsn(29))))) == [20000]
    for end in (str(Lsn(30)), "latest"):
        with pytest.raises(PySparkException, match="column name was dropped"):
            read(spark, shop.options(startingPosition="0/A", endingPosition=end)).collect()
    assert ids(read(spark, shop.options(startingPosition="0/A", table="public.items"))) == [40000]


class Following:
    """A streaming query that remembers its batches, over restarts."""

    def __init__(self, spark: SparkSession, shop: Shop, checkpoint: Path) -> None:
        self._spark = spark
        self._shop = shop
        self._checkpoint = checkpoint
        self.batches: list[tuple[int, list[int]]] = []

    def run(self, **options: str) -> list[list[int]]:
        """Read what is there, and stop; return the batches of this run."""
        before = len(self.batches)
        self.start(trigger={"availableNow": True}, **options).awaitTermination(60)
        return [batch for _, batch in self.batches[before:]]

    def start(self, trigger: dict[str, Any] | None = None, **options: str) -> Any:
        rows = self._spark.readStream.format("penstock").options(**self._shop.options(**options)).load()
        writer = rows.writeStream.foreachBatch(self._remember).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def _remember(self, rows: DataFrame, number: int) -> None:
        self.batches.append((number, ids(rows)))


@pytest.fixture
def following(spark: SparkSession, shop: Shop, tmp_path: Path) -> Following:
    return Following(spark, shop, tmp_path / "checkpoint")


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
    log = log_path(shop.home, "shop")
    for path in log.parent.iterdir():
        path.unlink()
    SqliteLog(log).create(Lsn(100))
    shop.writer = SqliteLogWriter(log)
    shop.writer.define(ORDERS)
    shop.orders(inserted(110))
    with pytest.raises(StreamingQueryException, match="changes after 0/14 are not in it"):
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
