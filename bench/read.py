"""From the change log into Spark: `format("penstock")` into the noop sink, on two local cores, compared with Arrow.

A log is filled with inserts into a table of eight columns, as capture writes them: chunks of several thousand rows.
Then a batch query and a stream read the whole log into the noop sink. The reference reads the same log through its
interface, in one thread and without Spark, with the same columns.

Goal: 500,000 rows per second.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bench.orders import COLUMNS
from bench.rounds import Spread, alternate, print_table, size, timed
from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog, SourceRecord
from penstock.changelog.chunk_codec import stored_schema
from penstock.changelog.interface import ChangeLog, Chunk, transaction_schema
from penstock.changelog.user_rows import changes
from penstock.layout import catalog_path
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.spark.session import session

__all__ = ["UNIT", "run"]

UNIT = "rows_per_second"
_TABLE = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
_CHUNK_ROWS = 8190


def run(quick: bool) -> float:
    """Measure, print, and return the rows per second of the batch query."""
    rows, rounds = size(1_000_000 if quick else 5_000_000, 3)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        home = Path(folder) / "home"
        log = _filled(home, rows)
        spark = session("bench", master="local[2]")
        _batch(spark, home)  # warm-up: load classes, start workers
        numbered = iter(range(1000))
        found = alternate(
            {
                "Arrow, no Spark": lambda _: timed(lambda: _arrow(log)),
                "batch": lambda _: timed(lambda: _batch(spark, home)),
                "stream": lambda _: timed(lambda: _stream(spark, home, Path(folder) / f"checkpoint-{next(numbered)}")),
            },
            rounds,
        )
        spark.stop()
    speeds = {name: Spread.of([rows / sample.seconds for sample in samples]) for name, samples in found.items()}
    shown = [[name, speed.show(",.0f")] for name, speed in speeds.items()]
    print_table(f"{rows:,} inserts, 8 columns", ("reader", "rows/s: min / median / max"), shown)
    return speeds["batch"].median


def _filled(home: Path, rows: int) -> ChangeLog:
    """Create a home with a source whose log has `rows` inserts, ten per transaction."""
    catalog = Catalog(catalog_path(home))
    catalog.add_sources([(SourceRecord("bench", "POSTGRES", "{}", "{}", SourceState.READY), [])])
    log = catalog.log("bench")
    log.create(Lsn(1))
    with closing(log.writer()) as writer:
        writer.define(_TABLE, Lsn(1))
        for first in range(0, rows, _CHUNK_ROWS):
            chunk = _chunk(first, min(_CHUNK_ROWS, rows - first))
            last = chunk.transactions.column(0)[-1].as_py()
            writer.publish([chunk], Lsn(last), committed_at=last)
    return log


def _chunk(first: int, rows: int) -> Chunk:
    n = np.arange(first, first + rows)
    lsns = np.unique(n // 10) * 100 + 200
    time_type = transaction_schema().field(2).type
    transactions = [pa.array(lsns), pa.array(lsns % 1_000_000), pa.array(lsns).cast(time_type)]
    values = [
        pa.array(n),
        pa.array(n % 997),
        pc.take(pa.array(["new", "paid", "shipped", "returned"]), pa.array(n % 4)),
        pc.binary_join_element_wise(pa.scalar("a note of order "), pc.cast(pa.array(n), pa.string()), ""),
        pc.cast(pa.array((n % 100_000).astype(np.int32)), pa.decimal128(12, 2)),
        pa.array(n / 7),
        pa.array(n % 2 == 0),
        pa.array(1_700_000_000_000_000 + n).cast(pa.timestamp("us", "UTC")),
    ]
    row = pa.StructArray.from_arrays(values, fields=list(COLUMNS))
    unchanged = pa.nulls(rows, stored_schema(COLUMNS).field("_unchanged").type)
    images = [
        pa.array((n // 10 - first // 10).astype(np.int32)),
        pa.array(n % 10),
        pa.repeat(pa.scalar(int(Image.INSERTED), pa.int8()), rows),
        unchanged,
        row,
    ]
    return Chunk(
        _TABLE.table,
        1,
        pa.RecordBatch.from_arrays(transactions, schema=transaction_schema()),
        pa.RecordBatch.from_arrays(images, schema=stored_schema(COLUMNS)),
        1 << Image.INSERTED,
        False,
    )


def _arrow(log: ChangeLog) -> None:
    with closing(log.reader()) as reader:
        reach = reader.frontiers()
        for batch in reader.read(reader.extent(_TABLE.table, reach.valid, reach.durable)):
            changes(batch)


def _options(home: Path) -> dict[str, str]:
    return {"home": str(home), "source": "bench", "table": "public.orders", "startingPosition": "0/1"}


def _batch(spark: SparkSession, home: Path) -> None:
    spark.read.format("penstock").options(**_options(home)).load().write.format("noop").mode("overwrite").save()


def _stream(spark: SparkSession, home: Path, checkpoint: Path) -> None:
    rows = spark.readStream.format("penstock").options(**_options(home)).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
