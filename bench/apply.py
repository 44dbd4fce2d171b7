"""Cost of applying a batch to a table of one size and of ten times that size, compared with a hand-written MERGE.

A batch has 10,000 changes: 70 % updates, 15 % inserts, 15 % deletes. It is written into a change log in SQLite, as
capture does, and applied as by `penstock run`: read, folded, merged, and the position of the table read back. The
reference is a hand-written `foreachBatch`: the newest change of each key by `row_number`, then MERGE on the key, into a
plain Delta table with the same rows. It reads the same images from the same log.

Keys are *recent*, the newest 5 % of the table, or *random*, from the whole table. Subject and reference alternate, and
so do the two sizes; the first round is not counted.

Goals, with recent keys: ten times the rows cost at most 1.3 times as much; at most 0.8 times the cost of the reference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from bench.orders import COLUMNS
from bench.rounds import Sample, size, timed
from bench.scaling import first_key, growth_ratio
from penstock.changelog.chunk_codec import stored_schema
from penstock.changelog.interface import ChangeLog, Chunk, Extent, transaction_schema
from penstock.changelog.sqlite.log import SqliteLog
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.spark.images import images
from penstock.spark.session import session
from penstock.tables.base import DeltaBaseTable
from penstock.tables.log_tail import read_tail

__all__ = ["run"]

_BATCH = 10_000
_UPDATES, _DELETES = 0.7, 0.15
_FILE_ROWS = 500_000


def run(quick: bool) -> float:
    """Measure, print, and return the cost ratio for ten times the rows with recent keys."""
    rows, rounds = size(100_000 if quick else 1_000_000, 3 if quick else 7)
    sizes = (rows, 10 * rows)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        spark = session("bench", master="local[2]")
        tables = [_Table.created(spark, Path(folder) / str(n), n, min(_BATCH, rows // 100)) for n in sizes]
        ratio = growth_ratio(tables, rounds, "changes")
        spark.stop()
    return ratio


@dataclass
class _Table:
    """The same rows as a base table and as a plain Delta table, and the log that both follow."""

    rows: int
    spark: SparkSession
    log: ChangeLog
    schema: TableSchema
    base: DeltaBaseTable
    plain: str
    positions: list[Lsn]
    """The end position of each batch, after the start position."""
    batch: int
    """The number of changes of a batch."""
    gone: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Keys that batches deleted."""

    @classmethod
    def created(cls, spark: SparkSession, folder: Path, rows: int, batch: int) -> _Table:
        """Create both tables with `rows` rows, and an empty log."""
        schema = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
        folder.mkdir()
        log = SqliteLog(folder / "log.db")
        log.create(Lsn(1))
        base = DeltaBaseTable(spark, str(folder / "base"), schema)
        base.create(_rows(spark, rows), Lsn(1))
        _rows(spark, rows).write.format("delta").save(str(folder / "plain"))
        return cls(rows, spark, log, schema, base, str(folder / "plain"), [Lsn(1)], batch)

    def apply_batches(self, keys: str) -> Iterator[Sample]:
        """Apply one batch after the other to the base table."""
        for number in count(len(self.positions) - 1):
            after, upto = self._range(number, keys)
            yield timed(partial(self._apply, after, upto))

    def _apply(self, after: Lsn, upto: Lsn) -> None:
        tail = read_tail(self.spark, self.log, self.schema, after, upto)
        assert tail is not None
        self.base.merge(tail.net, upto, tail.contents)
        self.base.state()

    def merge_by_hand(self, keys: str) -> Iterator[Sample]:
        """Merge the same batches into the plain table."""
        for number in count(len(self.positions) - 1):
            after, upto = self._range(number, keys)
            with closing(self.log.reader()) as reader:
                extent = reader.extent(self.schema.table, after, upto)
            yield timed(partial(self._merge_by_hand, extent))

    def _merge_by_hand(self, extent: Extent) -> None:
        _merge_by_hand(self.spark, images(self.spark, self.log, self.schema, extent), self.plain)

    def _range(self, number: int, keys: str) -> tuple[Lsn, Lsn]:
        if number + 1 == len(self.positions):
            self._write(number, keys)
        return self.positions[number], self.positions[number + 1]

    def _write(self, number: int, keys: str) -> None:
        """Write the next batch into the log."""
        upto = Lsn(1000 * (number + 1))
        with closing(self.log.writer()) as writer:
            writer.define(self.schema, Lsn(1))
            writer.publish([self._chunk(number, keys, upto)], upto, committed_at=int(upto))
        self.positions.append(upto)

    def _chunk(self, number: int, keys: str, lsn: Lsn) -> Chunk:
        updates, deletes = int(self.batch * _UPDATES), int(self.batch * _DELETES)
        inserts = self.batch - updates - deletes
        first = first_key(self.rows, keys)
        there = np.setdiff1d(np.arange(first, self.rows), self.gone)
        old = np.random.default_rng(number).choice(there, updates + deletes, replace=False)
        self.gone = np.concatenate([self.gone, old[updates:]])
        new = self.rows + number * inserts + np.arange(inserts)
        kinds = np.repeat([Image.UPDATED, Image.DELETED_KEY, Image.INSERTED], [updates, deletes, inserts])
        return _chunk(self.schema.table, np.concatenate([old, new]), kinds.astype(np.int8), lsn)


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows in key order, in files of half a million rows."""
    n = F.col("id")
    return spark.range(0, rows, 1, max(2, rows // _FILE_ROWS)).select(
        n,
        (n % 997).alias("customer"),
        F.element_at(F.array(*map(F.lit, ("new", "paid", "shipped", "returned"))), (n % 4 + 1).cast("int")).alias(
            "status"
        ),
        F.concat(F.lit("a note of order "), n.cast("string")).alias("note"),
        (n % 100_000).cast("decimal(12, 2)").alias("amount"),
        (n / 7).alias("weight"),
        (n % 2 == 0).alias("paid"),
        F.timestamp_micros(n + 1_700_000_000_000_000).alias("at"),
    )


def _chunk(table: TableName, ids: npt.NDArray[np.int64], kinds: npt.NDArray[np.int8], lsn: Lsn) -> Chunk:
    gone = pa.array(kinds == Image.DELETED_KEY)
    values = [
        pa.array(ids),
        pa.array(ids % 991),
        pc.take(pa.array(["new", "paid", "shipped", "returned"]), pa.array(ids % 4)),
        pc.binary_join_element_wise(pa.scalar("another note of order "), pc.cast(pa.array(ids), pa.string()), ""),
        pc.cast(pa.array((ids % 100_000).astype(np.int32)), pa.decimal128(12, 2)),
        pa.array(ids / 5),
        pa.array(ids % 2 == 1),
        pa.array(1_800_000_000_000_000 + ids).cast(pa.timestamp("us", "UTC")),
    ]
    kept = [values[0], *(pc.if_else(gone, pa.scalar(None, column.type), column) for column in values[1:])]
    stored = [
        pa.array(np.zeros(len(ids), np.int32)),
        pa.array(np.arange(len(ids))),
        pa.array(kinds),
        pa.nulls(len(ids), stored_schema(COLUMNS).field("_unchanged").type),
        pa.StructArray.from_arrays(kept, fields=list(COLUMNS)),
    ]
    transaction = [{"lsn": int(lsn), "xid": 1, "committed_at": int(lsn)}]
    return Chunk(
        table,
        1,
        pa.RecordBatch.from_pylist(transaction, transaction_schema()),
        pa.RecordBatch.from_arrays(stored, schema=stored_schema(COLUMNS)),
        sum(1 << int(kind) for kind in np.unique(kinds)),
        False,
    )


def _merge_by_hand(spark: SparkSession, changes: DataFrame, path: str) -> None:
    newest = Window.partitionBy("row.id").orderBy(F.desc("_lsn"), F.desc("_ordinal"))
    latest = changes.withColumn("_place", F.row_number().over(newest)).filter("_place = 1")
    source = latest.select((F.col("_image") < int(Image.UPDATED)).alias("_gone"), "row.*").alias("s")
    merge = DeltaTable.forPath(spark, path).alias("t").merge(source, "t.id = s.id")
    columns = {name: f"s.{name}" for name in COLUMNS.names}
    merge = merge.whenMatchedDelete("s._gone").whenMatchedUpdate(set=dict(columns))
    merge.whenNotMatchedInsert("NOT s._gone", values=dict(columns)).execute()
