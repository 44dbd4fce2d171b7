"""A Delta table that follows one upstream table and stores its own position.

::

    create(df, S) ──▶ v0 @S      merge(net, T) ──▶ v1 @T      append(df, U) ──▶ v2 @U      …

**The position is part of the commit.** There is no other record of progress, so none can disagree with the rows:

- `create` writes the position and a new *incarnation* (a random id) as table properties, in the same commit as the
  rows. (Delta does not record a transaction id with CREATE OR REPLACE.)
- Every later write carries Delta's idempotency marker, ``txn(appId = incarnation, version = position)``. Delta skips
  a write whose version is not above the last one: a replay after a crash changes nothing, whether or not the commit
  succeeded. The incarnation is needed because a replaced table keeps its old markers in Delta: without it, a snapshot
  at a lower position would be mistaken for a replay.
- Every commit repeats position and incarnation as ``userMetadata``, for the reverse lookup from position to version.

Hence ``position = max(property, txn)``, both read from one snapshot of the Delta log. A range without effect is
committed too (Delta writes the marker alone), so the position always advances.

**One commit per merge**, whatever it contains: deleted, changed and new rows, and a preceding TRUNCATE (an overwrite).
Omitted values are taken from the target row; a row whose key also changed takes them from the version before the
merge, joined to the source. Each table has its own Spark session, because MERGE reads the marker from session settings.

A `DeltaBaseTable` has one writer at a time, and any number of readers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from penstock.errors import DefiniteError
from penstock.model import COUNT, GONE, RESCUED, UNCHANGED, TableSchema, missing_value
from penstock.positions import Lsn
from penstock.spark.images import spark_schema
from penstock.tables.base_state import (
    COLUMN_MAPPING,
    SCHEMA,
    WINDOW,
    ChunkProgress,
    State,
    chunk_from,
    chunk_metadata,
    encode_schema,
    incarnation_of,
    is_mapped,
    last_txn_version,
    memory_from,
    needs_mapping,
    position_from,
    position_metadata,
    state_of,
    table_properties,
)
from penstock.tables.bounds import within_keys, within_rows
from penstock.tables.columns import column, own, quoted, rescuable, text_of, toastable, widened, with_texts
from penstock.tables.contents import Contents
from penstock.tables.file_commit import commit_files, files_of, snapshot_of
from penstock.tables.fold import replaced_rows, same_row
from penstock.tables.missing_rows import missing_row_errors, raise_missing_row
from penstock.tables.overlay import filled

__all__ = ["DeltaBaseTable"]

_COPYING = "copying"
_RECENT = 10
"""Commits to search for the last chunk of a snapshot: few other commits occur while it runs."""
_NOTHING = Contents()


class _Txn(NamedTuple):
    """The marker of a commit: the position it reaches, the application id it counts for, and its user metadata."""

    position: Lsn
    application: str
    metadata: str


class DeltaBaseTable:
    """The Delta table at `path` that follows the upstream table of `schema`."""

    def __init__(self, spark: SparkSession, path: str, schema: TableSchema) -> None:
        self.path = path
        self.schema = schema
        self._spark = spark
        self._session = spark.newSession()

    # -- writing ----------------------------------------------------------------------------------------------------

    def create(
        self,
        rows: DataFrame,
        position: Lsn,
        properties: Mapping[str, str] | None = None,
        comment: str = "",
        comments: Mapping[str, str] | None = None,
        generation: int = 0,
        window: str | None = None,
    ) -> None:
        """Create the table from `rows` at `position`, in one commit that replaces any table at the path.

        With a `window`, the table is filled in chunks (`add_chunk`) until the first `merge` or `append`.
        """
        incarnation = uuid.uuid4().hex
        described = table_properties(self.schema, incarnation, position, properties or {}, generation)
        if window is not None:
            described[WINDOW] = window
        writer = rows.select(*self._commented(comments or {})).writeTo(f"delta.{quoted(self.path)}").using("delta")
        writer = writer.option("userMetadata", position_metadata(incarnation, position))
        for name, value in described.items():
            writer = writer.tableProperty(name, value)
        if comment:
            writer = writer.tableProperty("comment", comment)
        writer.createOrReplace()

    def create_from_files(
        self,
        files: Sequence[str],
        position: Lsn,
        properties: Mapping[str, str] | None = None,
        comment: str = "",
        comments: Mapping[str, str] | None = None,
        generation: int = 0,
    ) -> None:
        """Create the table from files that `parquet_files` wrote under the path, given as Delta actions in JSON."""
        incarnation = uuid.uuid4().hex
        described = table_properties(self.schema, incarnation, position, properties or {}, generation)
        columns = spark_schema(self.schema.columns.remove_metadata())
        for field in columns:
            if field.name in (comments or {}):
                field.metadata = {"comment": (comments or {})[field.name]}
        metadata = position_metadata(incarnation, position)
        commit_files(self._session, self.path, columns, described, comment, files, metadata)

    def accepts_files(self) -> bool:
        """Return whether `create_from_files` is possible: neither the table nor its schema uses column mapping."""
        return not needs_mapping(self.schema) and not is_mapped(self._snapshot())

    def evolve(self, schema: TableSchema) -> None:
        """Add the columns that were added upstream, with the values that older rows have there.

        The position does not change. The schema property is set last: until then the table has its old schema, and
        after a crash all of this is repeated.
        """
        state = self.state()
        if state is None:
            return
        added = schema.added_to(state.schema)
        if needs_mapping(schema):
            self.set_properties(COLUMN_MAPPING)
        if all(missing_value(field)[0].is_valid is False for field in added):
            self._add_columns(added)
        else:
            self._rewrite(state, added)
        self.set_properties({SCHEMA: encode_schema(schema)})
        self.schema = schema

    def add_chunk(self, rows: DataFrame, chunk: ChunkProgress) -> None:
        """Add a chunk of an incremental snapshot; repeated calls with the same chunk number add it once."""
        incarnation = self.incarnation()
        writer = rows.select(*map(column, self.schema.columns.names)).write.format("delta").mode("append")
        writer = writer.option("txnAppId", f"{incarnation} {WINDOW}").option("txnVersion", chunk.number)
        writer.option("userMetadata", chunk_metadata(incarnation, chunk)).save(self.path)

    def append(self, rows: DataFrame, position: Lsn) -> None:
        """Add `rows`, none of whose keys is in the table, and advance to `position`."""
        self._write(rows, self._txn(position), "append")

    def merge(
        self,
        net: DataFrame,
        position: Lsn,
        contents: Contents = _NOTHING,
        copied: ChunkProgress | None = None,
        memory: str | None = None,
    ) -> None:
        """Merge a net change, the `fold` of images with these `contents`, and advance to `position`.

        With `copied`, an incremental snapshot continues after it: the table still exposes no position. `memory` is the
        envelope state to resume from. Raise a `TableError` if the table lacks a row that the net change needs.
        """
        txn = self._txn(position, copied, memory)
        if last_txn_version(self._snapshot(), txn.application) >= position:
            return  # a replay: its first run may have removed base rows that the net change needs
        with missing_row_errors(self.schema, position):
            self._merge(net, txn, contents)

    # -- reading ----------------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """Return version and position, read together from the newest Delta snapshot, or None if there is no table."""
        return state_of(self._snapshot())

    def chunk_progress(self) -> ChunkProgress | None:
        """Return the last chunk of an incremental snapshot, or None before the first."""
        history = DeltaTable.forPath(self._spark, self.path).history(_RECENT).select("version", "userMetadata")
        incarnation = self.incarnation()
        found = (chunk_from(text, incarnation) for _, text in history.orderBy(F.desc("version")).collect())
        return next((chunk for chunk in found if chunk is not None), None)

    def memory(self, position: Lsn) -> str | None:
        """Return the envelope state in the commit that reached a position."""
        incarnation = self.incarnation()
        for limit in (_RECENT, None):
            table = DeltaTable.forPath(self._spark, self.path)
            history = (table.history(limit) if limit else table.history()).select("version", "userMetadata")
            for _, text in history.orderBy(F.desc("version")).collect():
                if position_from(text, incarnation) == position:
                    return memory_from(text, incarnation)
        message = f"the Delta log of {self.schema.table} no longer contains the commit of position {position}"
        raise DefiniteError(
            message,
            "That commit held the state to resume from. Capture the table again: ALTER SOURCES … RETRY TABLE …;",
        )

    def position(self) -> Lsn | None:
        """Return the position of the table, or None if it does not exist."""
        state = self.state()
        return state.position if state else None

    def version(self) -> int | None:
        """Return the newest Delta version, or None if the table does not exist."""
        state = self.state()
        return state.version if state else None

    def versions(self, limit: int | None = None) -> list[tuple[int, Lsn]]:
        """Return the versions that correspond to a position, newest first, among the newest `limit` commits."""
        incarnation = self.incarnation()
        table = DeltaTable.forPath(self._spark, self.path)
        history = (table.history(limit) if limit else table.history()).select("version", "userMetadata")
        found = []
        for version, text in history.orderBy(F.desc("version")).collect():
            position = position_from(text, incarnation)
            if position is not None:
                found.append((version, position))
        return found

    def current(self) -> DataFrame:
        """Return the rows of the newest version."""
        return self.at(self._snapshot().version())

    def count(self) -> int | None:
        """Return the number of rows of the newest version, or None if a file has no statistics."""
        there = F.get_json_object("stats", "$.numRecords").cast("long")
        removed = F.coalesce("deletionVector.cardinality", F.lit(0))
        files = files_of(self._session, self.path).select((there - removed).alias("rows"))
        total, known = files.agg(F.coalesce(F.sum("rows"), F.lit(0)), F.count("rows") == F.count("*")).collect()[0]
        return int(total) if known else None

    def widened(self, rows: DataFrame) -> DataFrame:
        """Return rows that were read before the table gained columns, extended by these columns."""
        return widened(self._spark, rows, list(self.schema.columns)[len(rows.columns) :])

    def at(self, version: int) -> DataFrame:
        """Return the rows of a Delta version."""
        return self._spark.read.format("delta").option("versionAsOf", version).load(self.path)

    # -- internal ---------------------------------------------------------------------------------------------------

    def _merge(self, net: DataFrame, txn: _Txn, contents: Contents) -> None:
        if self.schema.key and contents.truncated is not None:
            self._write(self._without_base(net, contents), txn, "overwrite")
        elif self.schema.key and contents.inserts_only:
            self._write(net, txn, "append")
        else:
            with _materialized(net) as read_once:
                (self._merge_keys if self.schema.key else self._merge_keyless)(read_once, txn, contents)

    def _merge_keys(self, net: DataFrame, txn: _Txn, contents: Contents) -> None:
        if contents.unchanged and contents.moved:
            with _materialized(self._filled(net, contents)) as filled_once:
                self._merge_rows(filled_once, txn, kept=False)
        else:
            self._merge_rows(net, txn, kept=contents.unchanged)

    def _merge_rows(self, source: DataFrame, txn: _Txn, *, kept: bool) -> None:
        """Merge rows by key; with `kept`, omitted values remain those of the target row."""
        names = self.schema.columns.names
        left_out = {name: index for index, name in toastable(self.schema)} if kept else {}
        updated: dict[str, str | Column] = {quoted(name): _updated(name, left_out.get(name)) for name in names}
        inserted: dict[str, str | Column] = {
            quoted(name): _inserted(name, left_out.get(name), self.schema) for name in names
        }
        if kept and rescuable(self.schema):
            updated[quoted(RESCUED)] = _updated_texts(self.schema)
        match = within_keys(source, self.schema, "target")
        for name in self.schema.key:
            match &= column(name, "target") == column(name, "source")
        gone = F.col(f"source.{GONE}")
        merge = self._target(txn).merge(source.alias("source"), match)
        merge = merge.whenMatchedDelete(gone).whenMatchedUpdate(set=updated)
        merge.whenNotMatchedInsert(~gone, values=inserted).execute()

    def _merge_keyless(self, net: DataFrame, txn: _Txn, contents: Contents) -> None:
        """Delete all copies of rows whose count decreases, and insert the remaining number of copies."""
        fewer = net.filter(F.col(COUNT) < 0)
        reach = within_rows(fewer, self.schema, "target")
        base = self.current().alias("target").filter(reach)
        if contents.truncated is not None:
            base = base.limit(0)
        repeat = F.explode(F.array_repeat(F.lit(True), F.col(COUNT).cast("int")))
        new = replaced_rows(base, net, self.schema).withColumn(own("new"), repeat)
        if contents.truncated is not None or contents.inserts_only:
            self._write(new, txn, "append" if contents.inserts_only else "overwrite")
            return
        match = reach & ~F.col(f"source.{own('new')}") & same_row(base, self.schema, "target", "source")
        values: dict[str, str | Column] = {quoted(name): column(name, "source") for name in self.schema.columns.names}
        with _materialized(fewer.withColumn(own("new"), F.lit(False)).unionByName(new)) as source:
            merge = self._target(txn).merge(source.alias("source"), match).whenMatchedDelete()
            merge.whenNotMatchedInsert(F.col(f"source.{own('new')}"), values=values).execute()

    def _add_columns(self, added: Sequence[pa.Field]) -> None:
        there = self.current().columns
        fields = spark_schema(pa.schema([field for field in added if field.name not in there]))
        if fields:
            columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
            self._spark.sql(f"ALTER TABLE delta.{quoted(self.path)} ADD COLUMNS ({columns})")

    def _rewrite(self, state: State, added: Sequence[pa.Field]) -> None:
        rows = widened(self._spark, self.at(state.version).select(*map(column, state.schema.columns.names)), added)
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("userMetadata", position_metadata(self.incarnation(), state.position)).save(self.path)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the Delta table; keep the position."""
        assignments = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._spark.sql(f"ALTER TABLE delta.{quoted(self.path)} SET TBLPROPERTIES ({assignments})")

    def _write(self, rows: DataFrame, txn: _Txn, mode: str) -> None:
        writer: DataFrameWriter = rows.select(*map(column, self.schema.columns.names)).write.format("delta").mode(mode)
        writer = writer.option("txnAppId", txn.application).option("txnVersion", int(txn.position))
        writer.option("userMetadata", txn.metadata).save(self.path)

    def _txn(self, position: Lsn, copied: ChunkProgress | None = None, memory: str | None = None) -> _Txn:
        incarnation = self.incarnation()
        if copied is not None:
            return _Txn(position, f"{incarnation} {_COPYING}", chunk_metadata(incarnation, copied))
        return _Txn(position, incarnation, position_metadata(incarnation, position, memory))

    def _target(self, txn: _Txn) -> DeltaTable:
        """Return the MERGE target, in a session that marks the commit with the position of `txn`."""
        settings = self._session.conf
        settings.set("spark.databricks.delta.write.txnAppId", txn.application)
        settings.set("spark.databricks.delta.write.txnVersion", str(int(txn.position)))
        settings.set("spark.databricks.delta.commitInfo.userMetadata", txn.metadata)
        settings.set("spark.databricks.delta.merge.materializeSource", "none")  # the source is materialized already
        return DeltaTable.forPath(self._session, self.path).alias("target")

    def _filled(self, net: DataFrame, contents: Contents) -> DataFrame:
        return filled(self.current(), net, self.schema, contents)

    def _without_base(self, net: DataFrame, contents: Contents) -> DataFrame:
        present = net.filter(~F.col(GONE))
        return filled(self.current().limit(0), present, self.schema, contents) if contents.unchanged else present

    def incarnation(self) -> str:
        """Return the random id of the table that is at the path now."""
        incarnation = incarnation_of(self._snapshot())
        if incarnation is None:
            message = f"no base table of {self.schema.table} at {self.path}"
            raise DefiniteError(
                message, "Drop the source and create it again; this takes a new snapshot of its tables."
            )
        return incarnation

    def _snapshot(self) -> Any:
        return snapshot_of(self._spark, self.path)

    def _commented(self, comments: Mapping[str, str]) -> list[Column]:
        names = self.schema.columns.names
        return [column(n).alias(n, metadata={"comment": comments[n]}) if n in comments else column(n) for n in names]


@contextmanager
def _materialized(net: DataFrame) -> Iterator[DataFrame]:
    """Materialize a net change: it is read for its bounds, and twice by a MERGE.

    Delta would materialize it for the MERGE alone, and rejects a source that is only cached.
    """
    if net.isLocal():
        yield net
        return
    kept = net.localCheckpoint()
    try:
        yield kept
    finally:
        plan: Any = kept._jdf.queryExecution().analyzed()
        plan.rdd().unpersist(False)


def _updated(name: str, left_out: int | None) -> Column:
    value = column(name, "source")
    if left_out is None:
        return value
    return F.when(F.array_contains(f"source.{UNCHANGED}", left_out), column(name, "target")).otherwise(value)


def _updated_texts(schema: TableSchema) -> Column:
    """Return the texts of rescued values: those of the source, and the target's of values that remain."""
    listed, there = f"source.{UNCHANGED}", column(RESCUED, "target")
    texts = [(name, F.when(F.array_contains(listed, i), text_of(there, name))) for i, name in rescuable(schema)]
    return with_texts(column(RESCUED, "source"), texts)


def _inserted(name: str, left_out: int | None, schema: TableSchema) -> Column:
    value = column(name, "source")
    if left_out is None:
        return value
    return F.when(F.array_contains(f"source.{UNCHANGED}", left_out), raise_missing_row(schema)).otherwise(value)
