"""Queries on a live table with 10,000 unmerged changes, compared with the plain Delta table; and commit to live view.

A table of eight columns has a base in Delta and a change log with 10,000 changes after it: updates, inserts and
deletes, in transactions of ten. Each query runs alternately on a new live table and on the plain Delta table. The time
to create the live table (to read and fold the tail) is included.

Then an embedded Postgres is captured as in ``penstock run``, and rows are committed one by one. The time is measured
from the return of a commit until `home.live` returns a view at or after it, without a query.

Goal: the aggregate on the live table takes at most 1.3 times that on the Delta table; commit to live view p50 below
20 ms.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.orders import COLUMNS
from bench.rounds import (
    Sample,
    Spread,
    alternate,
    median_ratio,
    print_environment,
    print_table,
    size,
    timed,
    warm_rounds,
)
from penstock.changelog.chunk_codec import stored_schema
from penstock.changelog.interface import Chunk, transaction_schema
from penstock.changelog.sqlite.log import SqliteLog
from penstock.embedded.postgres import start_postgres
from penstock.engine.source_runner import CaptureSupervisor
from penstock.home import Home
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.spark.session import session
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.live_table import live_table

__all__ = ["run"]

_START = Lsn(100)
_CHANGES = 10_000
_CHUNK = 1000
_TRANSACTION = 10
_COMMITS = 200
_WARM = 10
_PAUSE = 0.02
_PATIENCE = 60.0

_Query = Callable[[DataFrame, DataFrame], DataFrame]


def run(quick: bool) -> float:
    """Measure, print, and return the time ratio of the aggregate on the live table to that on the Delta table."""
    rows, rounds = size(1_000_000 if quick else 4_000_000, 5 if quick else 9)
    spark = session("bench", master="local[2]")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        orders, others = (_Table.filled(spark, Path(folder), name, rows) for name in ("orders", "others"))
        found = {name: _measured(query, orders, others, rounds) for name, query in _queries(rows).items()}
    ratios = {name: median_ratio(samples["live"], samples["Delta"]) for name, samples in found.items()}
    shown = [
        [
            name,
            *(Spread.of([s.seconds for s in samples[which]]).show(".2f") for which in samples),
            ratios[name].show(".2f"),
        ]
        for name, samples in found.items()
    ]
    header = ("query", "Delta, s: min / median / max", "live, s", "live : Delta")
    print_table(f"{rows:,} rows, 8 columns, {_CHANGES:,} changes in the tail", header, shown)
    _show_visible(spark, _COMMITS // 4 if quick else _COMMITS)
    spark.stop()
    return ratios["aggregate"].median


def _queries(rows: int) -> dict[str, _Query]:
    """Return queries over two tables with the same columns; most use one."""
    numbers = (F.sum("amount"), F.max("weight"), F.count("note"))
    return {
        "aggregate": lambda orders, _: orders.groupBy("status").agg(*numbers),
        "one key": lambda orders, _: orders.filter(F.col("id") == rows // 3),
        "join of two": lambda orders, others: (
            orders.join(others.select("id", F.col("status").alias("other")), "id").groupBy("other").agg(F.sum("amount"))
        ),
    }


def _measured(query: _Query, orders: _Table, others: _Table, rounds: int) -> dict[str, list[Sample]]:
    """Run a query alternately over plain and new live tables, after a warm-up run."""
    candidates = {
        "Delta": lambda _: timed(lambda: query(orders.plain(), others.plain()).collect()),
        "live": lambda _: timed(lambda: query(orders.live(), others.live()).collect()),
    }
    alternate(candidates, warm_rounds())
    return alternate(candidates, rounds)


# -- the tables -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """A base table and the log after it."""

    spark: SparkSession
    path: Path
    log: SqliteLog
    schema: TableSchema
    upto: Lsn

    @classmethod
    def filled(cls, spark: SparkSession, folder: Path, name: str, rows: int) -> _Table:
        """Create the base with `rows` rows, and a log of changes."""
        schema = TableSchema(TableName("public", name), COLUMNS, ("id",))
        log = SqliteLog(folder / f"{name}.db")
        log.create(_START)
        with closing(log.writer()) as writer:
            writer.define(schema, _START)
            for first in range(0, _CHANGES, _CHUNK):
                chunk = _chunk(schema, first, rows)
                upto = Lsn(chunk.transactions.column(0)[-1].as_py())
                writer.publish([chunk], upto, committed_at=int(upto))
        DeltaBaseTable(spark, str(folder / name), schema).create(spark.range(rows).selectExpr(*_VALUES), _START)
        return cls(spark, folder / name, log, schema, upto)

    def plain(self) -> DataFrame:
        """Return the plain Delta table."""
        return self.spark.read.format("delta").load(str(self.path))

    def live(self) -> DataFrame:
        """Return the table at the end of the log, as created by `home.live`."""
        state = State(0, _START, self.schema)
        return live_table(self.spark, self.log, self.path, state, self.schema, self.upto)


_VALUES = (
    "id",
    "id % 997 AS customer",
    "element_at(array('new', 'paid', 'shipped', 'returned'), cast(id % 4 + 1 AS int)) AS status",
    "concat('a note of order ', id) AS note",
    "cast(id % 100000 / 100 AS decimal(12, 2)) AS amount",
    "id / 7 AS weight",
    "id % 2 = 0 AS paid",
    "timestamp_micros(1700000000000000 + id) AS at",
)


def _chunk(schema: TableSchema, first: int, rows: int) -> Chunk:
    """Return changes: out of ten, seven updates across the table, two inserts and a delete."""
    n = np.arange(first, first + _CHUNK)
    kinds = np.choose(n % 10, [Image.DELETED_KEY, Image.INSERTED, Image.INSERTED, *[Image.UPDATED] * 7]).astype(np.int8)
    ids = np.where(kinds == Image.INSERTED, rows + n, n * (rows // _CHANGES or 1))
    gone = kinds == Image.DELETED_KEY
    values = [
        pa.array(ids),
        pa.array(ids % 997, mask=gone),
        pc.take(pa.array(["new", "paid", "shipped", "returned"]), pa.array(n // 10 % 4, mask=gone)),
        pc.binary_join_element_wise("a new note of order ", pc.cast(pa.array(ids, mask=gone), pa.string()), ""),
        pc.cast(pa.array((ids % 1000).astype(np.int32), mask=gone), pa.decimal128(12, 2)),
        pa.array(ids / 7, mask=gone),
        pa.array(n % 2 == 0, mask=gone),
        pa.array(1_700_000_000_000_000 + ids, mask=gone).cast(pa.timestamp("us", "UTC")),
    ]
    lsns = np.unique(n // _TRANSACTION) * 100 + 200
    transactions = [pa.array(lsns), pa.array(lsns), pa.array(lsns).cast(transaction_schema().field(2).type)]
    stored = stored_schema(schema.columns)
    images = [
        pa.array((n // _TRANSACTION - first // _TRANSACTION).astype(np.int32)),
        pa.array(n % _TRANSACTION),
        pa.array(kinds),
        pa.nulls(_CHUNK, stored.field("_unchanged").type),
        pa.StructArray.from_arrays(values, fields=list(schema.columns)),
    ]
    return Chunk(
        schema.table,
        1,
        pa.RecordBatch.from_arrays(transactions, schema=transaction_schema()),
        pa.RecordBatch.from_arrays(images, schema=stored),
        1 << Image.INSERTED | 1 << Image.UPDATED | 1 << Image.DELETED_KEY,
        False,
    )


# -- commit to live view --------------------------------------------------------------------------------------------


def _show_visible(spark: SparkSession, commits: int) -> None:
    with start_postgres() as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        print_environment(server)
        server.execute("CREATE TABLE event (id bigint PRIMARY KEY, name text NOT NULL)")
        home = Home(Path(folder) / "home")
        home.create(server.url, "bench")
        capture = CaptureSupervisor(home.path, "bench")
        try:
            taken = _milliseconds_until_visible(home, spark, server.url, commits)
        finally:
            capture.stop()
    p50, p99 = (float(np.percentile(taken, p)) for p in (50, 99))
    print(f"commit to a live view that shows it: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {commits} commits")


def _milliseconds_until_visible(home: Home, spark: SparkSession, url: str, commits: int) -> list[float]:
    """Commit, and open live views until one is at or after the commit; the first few are not counted."""
    taken = []
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(_WARM + commits):
            connection.execute("INSERT INTO event VALUES (%s, 'an event')", [number])
            committed = time.perf_counter()
            (end,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("0/0",)
            while home.live(spark).position < Lsn.parse(end):
                if time.perf_counter() > committed + _PATIENCE:
                    raise TimeoutError(f"a commit was not visible for {_PATIENCE:.0f} s: is capture running?")
            taken.append((time.perf_counter() - committed) * 1000)
            time.sleep(_PAUSE)
    return taken[_WARM:]
