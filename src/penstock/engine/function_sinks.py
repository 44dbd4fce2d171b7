"""Sinks into a function: creating them, and the delivery that calls the function.

::

    Home.sink ─▶ catalog (running) ─▶ started by the running home, if it has Spark
        │                                        │
        └─▶ registered in this process ◀─────────┴─ the function, or imported by its name

A second call of `Home.sink` for the same table registers the function again, so that a program can be started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.catalog.sinks import SinkRecord
from penstock.catalog.states import SinkState
from penstock.catalog.store import Catalog
from penstock.engine.sink_tables import CatalogTables
from penstock.engine.sinks import readable_sources, retain_for_sink, sink_of, sink_reader, spark_of
from penstock.engine.table_names import named_source, named_table
from penstock.errors import DefiniteError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord
from penstock.sinks.delivery import Delivery, ImageNeeds
from penstock.sinks.function.frames import SparkFrames
from penstock.sinks.function.output import FunctionOutput
from penstock.sinks.function.registration import function_of
from penstock.sinks.function.spec import FunctionSink
from penstock.tables.interface import TableStore

__all__ = ["add_function_sink", "function_delivery"]


def add_function_sink(catalog: Catalog, sink: FunctionSink) -> None:
    """Create a sink, or replace the function of an existing one. The caller must hold the lifecycle lock."""
    records = readable_sources(catalog, sink)
    table = named_table(catalog, records[0].name, sink.table)
    catalog.log(records[0].name).check_readable([table.upstream])
    sink = with_fields(sink, table=table.local)
    existing = catalog.sinks.get(sink.name)
    if existing is None:
        catalog.sinks.add(SinkRecord(sink.name, sink.source, sink.NAME, sink.model_dump_json()))
        retain_for_sink(catalog, sink)
        return
    _check_same(existing, sink)
    if existing.spec != sink.model_dump_json() or existing.state is SinkState.FAILED:
        catalog.sinks.alter(sink.name, existing.spec, sink.model_dump_json())


def _check_same(existing: SinkRecord, sink: FunctionSink) -> None:
    """Raise `DefiniteError` unless a sink differs from an existing one in its function or its retain limit only."""
    known = sink_of(existing)
    same = isinstance(known, FunctionSink) and (known.source, known.table) == (sink.source, sink.table)
    if not same or existing.state is SinkState.DROPPING:
        message = f"sink {sink.name} already exists: it reads {known.source}{'.' if known.table else ''}"
        message += f"{known.table or ''} into {known.place()}, and is {existing.state}"
        raise DefiniteError(message, f"Use another name, or drop it first: DROP SINK {sink.name};")
    if known.snapshot != sink.snapshot:
        message = f"sink {sink.name} already exists with snapshot={known.snapshot}, and has started"
        raise DefiniteError(message, f"Use the same option, or drop the sink first: DROP SINK {sink.name};")


def function_delivery(
    home: Path, catalog: Catalog, record: SinkRecord, source: str, store: TableStore | None
) -> tuple[Delivery, FunctionOutput]:
    """Return the delivery of a source to the function of a sink, and its output."""
    sink = sink_of(record)
    assert isinstance(sink, FunctionSink)
    calls = CallRecord(home, sink.name, source)
    tables = _FunctionTables(home, catalog, source, sink.table)
    session = spark_of(store, f"sink {sink.name} calls a function with Spark DataFrames")
    shard = named_source(catalog, source).shard
    frames = SparkFrames(session, home, source, calls.folder, tables.copied_columns, shard)
    output = FunctionOutput(
        partial(function_of, home, sink), sink.function, frames, calls, started=source in record.started
    )
    needs = ImageNeeds(whole_rows=True, deletes_for_truncate=False)
    log = catalog.log(source)
    return Delivery(sink_reader(sink.name), log, tables, output, snapshot=sink.snapshot, needs=needs), output


class _FunctionTables(CatalogTables):
    """The table of a sink into a function; its rows are read by Spark, within the call."""

    _copied: TableSchema | None = None

    def rows(self, table: TableName, at: Lsn, version: int, base: Lsn) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """Return the columns of the table at a position, and no rows; raise an error if the base does not exist."""
        self._copied, _ = super().rows(table, at, version, base)
        return self._copied, iter(())

    def copied_columns(self) -> TableSchema:
        """Return the columns of the table that is copied."""
        assert self._copied is not None
        return self._copied
