"""``format("penstock")`` as a batch, over a change log that is written here: no Postgres, but real Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.changelog.chunks import ORDERS, Row, chunk, inserted
from tests.changelog.test_retention import later, moment
from tests.spark.shop import START, Shop, broken, ids, read

from penstock.errors import PenstockError, UsageError
from penstock.model import Image
from penstock.positions import Lsn
from penstock.spark import pieces as spark_pieces
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


def test_the_audit_trail_of_a_row_between_two_moments(spark: SparkSession, shop: Shop) -> None:
    """Every change of a row, from when to when: by position and by time alike."""
    trail = [
        Row(20, 0, Image.INSERTED, (1, "new")),
        Row(30, 0, Image.BEFORE, (1, "new")),
        Row(30, 0, Image.UPDATED, (1, "paid")),
        Row(40, 0, Image.DELETED, (1, "paid")),
    ]
    for lsn in (20, 30, 40):
        made = chunk(ORDERS, [row for row in trail if row.lsn == lsn])
        at = pa.array([later(lsn)]).cast(pa.timestamp("us", "UTC"))
        dated = pa.RecordBatch.from_arrays([*made.transactions.columns[:2], at], schema=made.transactions.schema)
        shop.writer.publish([replace(made, transactions=dated)], Lsn(lsn), committed_at=later(lsn))

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


def test_a_range_that_the_log_does_not_have(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20))
    with pytest.raises(PySparkException, match="begins at 0/A"):
        read(spark, shop.options(startingPosition="0/9")).collect()
    with pytest.raises(PySparkException, match="source shop has come to 0/14, not to 0/15"):
        read(spark, shop.options(startingPosition="0/A", endingPosition="0/15")).collect()


def test_several_tasks_give_every_row_once_and_in_order(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for lsn in range(20, 40):
        shop.orders(*(inserted(lsn, n) for n in range(50)))
    source = PenstockDataSource(shop.options(startingPosition="0/14", endingPosition="0/24"))
    reader = source.reader(source.schema())
    for task_bytes, tasks in ((1 << 20, 1), (6000, 6), (1, 16)):
        monkeypatch.setattr(spark_pieces, "TASK_BYTES", task_bytes)
        pieces = reader.partitions()
        assert abs(len(pieces) - tasks) <= 2
        batches: list[Any] = [batch for piece in pieces for batch in reader.read(piece)]
        found = [row["after"]["id"] for batch in batches for row in batch.to_pylist()]
        assert found == [lsn * 1000 + n for lsn in range(21, 37) for n in range(50)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingPositon": "0/1"}, "'startingPositon'.*Did you mean startingPosition"),
        (
            {"colour": "red"},
            "'colour'.*Known are: home, source, table, rows, startingPosition, endingPosition, asOf, maxRows",
        ),
        ({"rows": "rainbow"}, "option rows of format penstock.*'changes'"),
        ({"rows": "live", "startingPosition": "0/A"}, "a live table has no startingPosition.*asOf"),
        ({"rows": "live", "endingPosition": "0/A"}, "a live table has no endingPosition.*asOf"),
        ({"asOf": "0/A"}, "rows=changes has no option asOf.*startingPosition"),
        ({"rows": "updates", "asOf": "0/A"}, "rows=updates has no option asOf"),
        ({"rows": "live", "asOf": "noon"}, "'noon' is neither an LSN nor a time"),
        ({"rows": "live", "asOf": "2026-11-15 12:00"}, "does not say its time zone.*2026-11-15T12:00:00Z"),
        ({"rows": "live", "asOf": "0/9"}, "cannot be read as of 0/9: its history begins at 0/A"),
        ({"rows": "live", "asOf": "0/B"}, "source shop has come to 0/A, not to 0/B"),
        ({"rows": "live", "asOf": "2199-01-01T00:00Z"}, "has come to .*, not to 2199-01-01 00:00:00"),
        ({"endingPosition": "2199-01-01T00:00Z"}, "has come to .*, not to 2199-01-01 00:00:00"),
        ({"startingPosition": "yesterday"}, "'yesterday' is not a position.*0?latest"),
        ({"table": "orders"}, "schema.table, not 'orders'.*public.orders"),
        ({"table": "public.order"}, "no table public.order.*It has: public.items, public.orders"),
        ({"source": "shp"}, "no source shp in .*Its sources are: shop"),
    ],
)
def test_wrong_options_without_spark(shop: Shop, options: dict[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=f"(?s){said}"):
        source = PenstockDataSource(shop.options(**options))
        source.reader(source.schema()).partitions()


def test_names_of_options_in_any_case(shop: Shop) -> None:
    options = PenstockOptions.parse({"HOME": "h", "Source": "s", "tAble": "a.b", "STARTINGPOSITION": "0/1"})
    assert (options.home, options.source, options.table, options.starting_position) == ("h", "s", "a.b", "0/1")


def test_a_missing_option() -> None:
    with pytest.raises(UsageError, match="option table of format penstock"):
        PenstockOptions.parse({"home": "h", "source": "s"})


def test_what_a_user_sees_of_a_wrong_option(spark: SparkSession, shop: Shop) -> None:
    with pytest.raises(PySparkException, match="has no option 'startingpositon'\nDid you mean startingPosition"):
        read(spark, shop.options(startingPositon="0/1"))
    with pytest.raises(PySparkException, match=r"has no table public\.order"):
        read(spark, shop.options(table="public.order"))


def test_an_error_of_a_table_holds_from_its_lsn_on(spark: SparkSession, shop: Shop) -> None:
    shop.orders(inserted(20))
    shop.orders(durable=30, errors=(broken(30),))
    shop.items(inserted(40))
    assert ids(read(spark, shop.options(startingPosition="0/A", endingPosition=str(Lsn(29))))) == [20000]
    for end in (str(Lsn(30)), "latest"):
        with pytest.raises(PySparkException, match="column name was dropped"):
            read(spark, shop.options(startingPosition="0/A", endingPosition=end)).collect()
    assert ids(read(spark, shop.options(startingPosition="0/A", table="public.items"))) == [40000]
