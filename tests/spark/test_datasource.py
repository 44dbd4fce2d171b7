"""``format("penstock")`` as a batch, over a change log written by the test: real Spark, no Postgres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.changelog.chunks import ORDERS, Row, chunk, inserted
from tests.changelog.test_retention import later, moment
from tests.spark.shop import START, Shop, ids, read, table_error

from penstock.errors import PenstockError, UsageError
from penstock.model import Image
from penstock.positions import Lsn
from penstock.spark import input_partitions
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.source_options import PenstockOptions


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
    assert between(40, 40) == between(45, 49) == between(50, None) == []


def test_audit_trail_of_a_row_between_two_positions_or_times(spark: SparkSession, shop: Shop) -> None:
    """All changes of a row in a range: bounded by positions or by times."""
    trail = [
        Row(20, 0, Image.INSERTED, (1, "new")),
        Row(30, 0, Image.BEFORE, (1, "new")),
        Row(30, 0, Image.UPDATED, (1, "paid")),
        Row(40, 0, Image.DELETED, (1, "paid")),
    ]
    for lsn in (20, 30, 40):
        changes = chunk(ORDERS, [row for row in trail if row.lsn == lsn])
        at = pa.array([later(lsn)]).cast(pa.timestamp("us", "UTC"))
        dated = pa.RecordBatch.from_arrays([*changes.transactions.columns[:2], at], schema=changes.transactions.schema)
        shop.writer.publish([replace(changes, transactions=dated)], Lsn(lsn), committed_at=later(lsn))

    def between(start: str, end: str) -> list[tuple[Any, ...]]:
        found = read(spark, shop.options(startingPosition=start, endingPosition=end)).where("_xid > 0").collect()
        return [
            (r._op, r.before and r.before.name, r.after and r.after.name) for r in sorted(found, key=lambda r: r._xid)
        ]

    whole = [("insert", None, "new"), ("update", "new", "paid"), ("delete", "paid", None)]
    assert between("0/A", "latest") == whole
    begun = moment(later(0)).isoformat()
    assert between(begun, str(Lsn(40))) == whole
    assert between(begun, moment(later(39.9)).isoformat()) == whole[:2]
    assert between(moment(later(20)).isoformat(), str(Lsn(30))) == whole[1:2]
    for options in ({"startingPosition": "1999-01-01"}, {"startingPosition": "0/A", "endingPosition": "1999-01-01"}):
        with pytest.raises(PySparkException, match=r"history.* begins at 0/A"):
            read(spark, shop.options(**options)).collect()


def test_range_outside_of_the_log_is_an_error(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20))
    with pytest.raises(PySparkException, match="begins at 0/A"):
        read(spark, shop.options(startingPosition="0/9")).collect()
    with pytest.raises(PySparkException, match="source shop has reached 0/14, not 0/15"):
        read(spark, shop.options(startingPosition="0/A", endingPosition="0/15")).collect()


def test_several_tasks_return_every_row_once_and_in_order(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for lsn in range(20, 40):
        shop.orders(*(inserted(lsn, n) for n in range(50)))
    source = PenstockDataSource(shop.options(startingPosition="0/14", endingPosition="0/24"))
    reader = source.reader(source.schema())
    for task_bytes, tasks in ((1 << 20, 1), (6000, 6), (1, 16)):
        monkeypatch.setattr(input_partitions, "TASK_BYTES", task_bytes)
        pieces = reader.partitions()
        assert abs(len(pieces) - tasks) <= 2
        batches: list[Any] = [batch for piece in pieces for batch in reader.read(piece)]
        found = [row["after"]["id"] for batch in batches for row in batch.to_pylist()]
        assert found == [lsn * 1000 + n for lsn in range(21, 37) for n in range(50)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingPositon": "0/1"}, "'startingPositon'.*Did you mean startingPosition"),
        (
            {"colour": "red"},
            "'colour'.*Valid options: home, source, table, rows, startingPosition, endingPosition, asOf, maxRows",
        ),
        ({"rows": "rainbow"}, "option rows of format penstock.*'changes'"),
        ({"rows": "live", "startingPosition": "0/A"}, "option startingPosition is not valid with rows=live.*asOf"),
        ({"rows": "live", "endingPosition": "0/A"}, "option endingPosition is not valid with rows=live.*asOf"),
        ({"asOf": "0/A"}, "option asOf is not valid with rows=changes.*startingPosition"),
        ({"rows": "updates", "asOf": "0/A"}, "option asOf is not valid with rows=updates"),
        ({"rows": "live", "asOf": "noon"}, "'noon' is neither an LSN nor a time"),
        ({"rows": "live", "asOf": "2026-11-15 12:00"}, "has no time zone.*2026-11-15T12:00:00Z"),
        ({"rows": "live", "asOf": "0/9"}, "cannot be read as of 0/9: its history begins at 0/A"),
        ({"rows": "live", "asOf": "0/B"}, "source shop has reached 0/A, not 0/B"),
        ({"rows": "live", "asOf": "2199-01-01T00:00Z"}, "has reached .*, not 2199-01-01 00:00:00"),
        ({"endingPosition": "2199-01-01T00:00Z"}, "has reached .*, not 2199-01-01 00:00:00"),
        ({"startingPosition": "yesterday"}, "invalid position 'yesterday'.*latest"),
        ({"table": "orders"}, "invalid table name 'orders'.*public.orders"),
        ({"table": "public.order"}, "no table public.order.*Its tables are: public.items, public.orders"),
        ({"source": "shp"}, "has no source shp.*Its sources are: shop"),
    ],
)
def test_invalid_options_are_rejected(shop: Shop, options: dict[str, str], message: str) -> None:
    with pytest.raises(PenstockError, match=f"(?s){message}"):
        source = PenstockDataSource(shop.options(**options))
        source.reader(source.schema()).partitions()


def test_option_names_are_case_insensitive(shop: Shop) -> None:
    options = PenstockOptions.parse({"HOME": "h", "Source": "s", "tAble": "a.b", "STARTINGPOSITION": "0/1"})
    assert (options.home, options.source, options.table, options.starting_position) == ("h", "s", "a.b", "0/1")


def test_a_missing_option() -> None:
    with pytest.raises(UsageError, match="option table of format penstock"):
        PenstockOptions.parse({"home": "h", "source": "s"})


def test_invalid_option_is_reported_through_spark(spark: SparkSession, shop: Shop) -> None:
    with pytest.raises(
        PySparkException, match="'startingpositon' of format penstock\nhint: Did you mean startingPosition"
    ):
        read(spark, shop.options(startingPositon="0/1"))
    with pytest.raises(PySparkException, match=r"has no table public\.order"):
        read(spark, shop.options(table="public.order"))


def test_table_error_applies_from_its_lsn(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20))
    shop.orders(durable=30, errors=(table_error(30),))
    shop.items(inserted(40))
    assert ids(read(spark, shop.options(startingPosition="0/A", endingPosition=str(Lsn(29))))) == [20000]
    for end in (str(Lsn(30)), "latest"):
        with pytest.raises(PySparkException, match="column name was dropped"):
            read(spark, shop.options(startingPosition="0/A", endingPosition=end)).collect()
    assert ids(read(spark, shop.options(startingPosition="0/A", table="public.items"))) == [40000]
