"""A home whose log and tables are written by the test, and a streaming query that records its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.changelog.chunks import ITEMS, ORDERS, Row, chunk

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.errors import TableError
from penstock.layout import base_path, catalog_path
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.spark.images import spark_schema
from penstock.tables.base import DeltaBaseTable
from penstock.testing.waiting import PATIENCE

START = 10


class InOneThread:
    """The log writer, usable from several threads: Spark calls foreachBatch in another thread."""

    def __init__(self, log: ChangeLog) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._writer = self._thread.submit(log.writer).result()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Call a method of the writer."""
        return lambda *given, **named: self._thread.submit(getattr(self._writer, name), *given, **named).result()


class Shop:
    """A home with one source, whose log is written by the test."""

    def __init__(self, home: Path, log: str | None = None) -> None:
        self.home = home
        self.catalog = Catalog(catalog_path(home))
        tables = [TableRecord("shop", s.table, s.table.name, TableState.LIVE) for s in (ORDERS, ITEMS)]
        self.catalog.add_sources([(SourceRecord("shop", "POSTGRES", "{}", "{}", SourceState.READY, log=log), tables)])
        self.log: ChangeLog = self.catalog.log("shop")
        self.log.create(Lsn(START))
        self.writer: Any = InOneThread(self.log)
        for schema in (ORDERS, ITEMS):
            self.writer.define(schema, Lsn(START))

    def orders(self, *rows: Row, durable: int = 0, errors: tuple[TableError, ...] = ()) -> None:
        """Publish changes of the table orders."""
        upto = Lsn(max([durable, *(row.lsn for row in rows)]))
        self.writer.publish([chunk(ORDERS, rows)] if rows else [], upto, committed_at=upto, errors=errors)

    def items(self, *rows: Row) -> None:
        """Publish changes of the table items."""
        self.writer.publish([chunk(ITEMS, rows)], Lsn(rows[-1].lsn), committed_at=rows[-1].lsn)

    def base(
        self, spark: SparkSession, rows: Sequence[tuple[Any, ...]], at: int, schema: TableSchema = ORDERS
    ) -> DeltaBaseTable:
        """Create a base table at a position."""
        path = base_path(self.home, "shop", schema.table.name)
        table = DeltaBaseTable(spark, str(path), schema)
        table.create(spark.createDataFrame(list(rows), spark_schema(schema.columns)), Lsn(at))
        self.note(table)
        return table

    def note(self, table: DeltaBaseTable) -> None:
        """Record the position of a base table in the catalog."""
        state = table.state()
        assert state is not None
        base = BaseVersion(state.version, state.position, state.schema)
        self.catalog.bases.note("shop", table.schema.table.name, base)

    def options(self, **options: str) -> dict[str, str]:
        return {"home": str(self.home), "source": "shop", "table": "public.orders", **options}


def table_error(lsn: int) -> TableError:
    return TableError("public.orders", lsn, "public.orders: column name was dropped", "Copy it again.")


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("penstock").options(**options).load()


def ids(frame: DataFrame) -> list[int]:
    """Return the keys of new rows in the order of the log, after those of a snapshot in the order of the key."""
    rows = frame.collect()
    return [
        r["after"]["id"] for r in sorted(rows, key=lambda r: (r["_xid"] or 0, r["_ordinal"] or 0, r["after"]["id"]))
    ]


class Following:
    """A streaming query that records its batches across restarts."""

    def __init__(self, spark: SparkSession, shop: Shop, checkpoint: Path) -> None:
        self._spark = spark
        self._shop = shop
        self._checkpoint = checkpoint
        self.batches: list[tuple[int, list[int]]] = []
        self.on_batch: Callable[[int], None] | None = None

    def run(self, **options: str) -> list[list[int]]:
        """Read all available changes, and stop; return the batches of this run."""
        before = len(self.batches)
        assert self.start(trigger={"availableNow": True}, **options).awaitTermination(int(PATIENCE))
        return [batch for _, batch in self.batches[before:]]

    def start(self, trigger: dict[str, Any] | None = None, **options: str) -> Any:
        rows = self._spark.readStream.format("penstock").options(**self._shop.options(**options)).load()
        writer = rows.writeStream.foreachBatch(self._record).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def _record(self, rows: DataFrame, number: int) -> None:
        self.batches.append((number, ids(rows)))
        if self.on_batch is not None:
            self.on_batch(number)
