"""One Delta table that follows one upstream table, and knows up to where.

::

    create(df, S) ──▶ v0 @S      merge(net, T) ──▶ v1 @T      append(df, U) ──▶ v2 @U      …

**The position is in the commit.** Nothing else records how far a table is, so nothing can disagree with its rows:

- `create` writes the position and a fresh *incarnation* (a random id) as table properties, in the one commit that also
  holds the rows. (Delta does not record a transaction id with CREATE OR REPLACE.)
- every later write carries Delta's own idempotence mark, ``txn(appId = incarnation, version = position)``. Delta skips
  a write whose version is not above the last one: a replay after a crash changes nothing, whether or not the commit
  had come through. The incarnation keeps apart what Delta does not: a replaced table still has its old marks, and
  with them a copy that starts at a lower position would be taken for a replay.
- every commit repeats position and incarnation as ``userMetadata``, for the way back: which version was it at T?

So ``position = max(property, txn)``, both from one snapshot of the log. A range without effect commits too (Delta
writes the mark alone), hence the position always moves.

**One commit per merge**, whatever it holds: rows gone, changed, new, a TRUNCATE before them (that is an overwrite).
Left-out values are those of the target row; a row that also changed its key takes them from the version before the
merge, joined to the source. Each table has a Spark session of its own, as MERGE takes the mark from session settings.

A `DeltaBaseTable` has one writer at a time; readers may be many.
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
from penstock.model import TableSchema, missing_value
from penstock.positions import Lsn
from penstock.spark.ranges import spark_schema
from penstock.tables.base_state import (
    MAPPED,
    SCHEMA,
    WINDOW,
    Copied,
    State,
    chunk_in,
    described_by,
    encoded,
    incarnation_of,
    is_mapped,
    marked,
    memory_in,
    needs_mapping,
    of_chunk,
    of_position,
    position_in,
    state_of,
)
from penstock.tables.bounds import within_keys, within_rows
from penstock.tables.columns import column, own, quoted, toastable, widened
from penstock.tables.contents import Contents
from penstock.tables.file_commit import commit_files, snapshot_of
from penstock.tables.fold import replaced_rows, same_row
from penstock.tables.missing_rows import absent_row, absent_rows_told
from penstock.tables.overlay import filled

__all__ = ["DeltaBaseTable"]

_COPYING = "copying"
_RECENT = 10
"""Commits to look at for the last chunk of a copy: little else is committed while it lasts."""
_NOTHING = Contents()


class _Mark(NamedTuple):
    """What a commit is known by: the position that it leads to, for whom that counts, and what it says of itself."""

    position: Lsn
    application: str
    told: str


class DeltaBaseTable:
    """The Delta table at `path` that follows `schema`'s table."""

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
        """Make the table of `rows` as of `position`, in one commit, in place of whatever lies at the path.

        With a `window`, it is to be copied in chunks (`add_chunk`); the first `merge` or `append` ends that.
        """
        incarnation = uuid.uuid4().hex
        described = described_by(self.schema, incarnation, position, properties or {}, generation)
        if window is not None:
            described[WINDOW] = window
        writer = rows.select(*self._commented(comments or {})).writeTo(f"delta.{quoted(self.path)}").using("delta")
        writer = writer.option("userMetadata", of_position(incarnation, position))
        for name, value in described.items():
            writer = writer.tableProperty(name, value)
        if comment:
            writer = writer.tableProperty("comment", comment)
        writer.createOrReplace()

    def create_of_files(
        self,
        files: Sequence[str],
        position: Lsn,
        properties: Mapping[str, str] | None = None,
        comment: str = "",
        comments: Mapping[str, str] | None = None,
        generation: int = 0,
    ) -> None:
        """As `create`, of files that `parquet_files` has written under the path: their actions, as JSON."""
        incarnation = uuid.uuid4().hex
        described = described_by(self.schema, incarnation, position, properties or {}, generation)
        columns = spark_schema(self.schema.columns.remove_metadata())
        for field in columns:
            if field.name in (comments or {}):
                field.metadata = {"comment": (comments or {})[field.name]}
        told = of_position(incarnation, position)
        commit_files(self._session, self.path, columns, described, comment, files, told)

    def takes_files(self) -> bool:
        """Whether `create_of_files` can make it: Delta chooses no other names for its columns, now or before."""
        return not needs_mapping(self.schema) and not is_mapped(self._snapshot())

    def evolve(self, schema: TableSchema) -> None:
        """Give the table the columns that were added to it upstream, filled with what older rows hold in them there.

        The position stays. The property that tells the columns is set last: until then the table counts as it was,
        and after a crash all of this is done again.
        """
        state = self.state()
        if state is None:
            return
        added = schema.added_to(state.schema)
        if needs_mapping(schema):
            self.set_properties(MAPPED)
        if all(missing_value(field)[0].is_valid is False for field in added):
            self._add_columns(added)
        else:
            self._rewrite(state, added)
        self.set_properties({SCHEMA: encoded(schema)})
        self.schema = schema

    def add_chunk(self, rows: DataFrame, chunk: Copied) -> None:
        """Add a chunk of a copy: once, however often this is called for its number."""
        incarnation = self.incarnation()
        writer = rows.select(*map(column, self.schema.columns.names)).write.format("delta").mode("append")
        writer = writer.option("txnAppId", f"{incarnation} {WINDOW}").option("txnVersion", chunk.number)
        writer.option("userMetadata", of_chunk(incarnation, chunk)).save(self.path)

    def append(self, rows: DataFrame, position: Lsn) -> None:
        """Add `rows`, none of whose keys is in the table, and stand at `position`."""
        self._write(rows, self._mark(position), "append")

    def merge(
        self,
        net: DataFrame,
        position: Lsn,
        contents: Contents = _NOTHING,
        copied: Copied | None = None,
        memory: str | None = None,
    ) -> None:
        """Put the net effect of a range in, which `fold` made of images with these `contents`; stand at `position`.

        With `copied`, a copy in chunks goes on after it, as it was: the table still shows no position. `memory` is
        what whoever goes on from there has to know, see `memory`. A `TableError` says that the table does not hold a
        row that it must hold.
        """
        mark = self._mark(position, copied, memory)
        if marked(self._snapshot(), mark.application) >= position:
            return  # a replay: what the net effect needs of the table may have gone with its first run
        with absent_rows_told(self.schema, position):
            self._merge(net, mark, contents)

    # -- reading ----------------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """Return version and position, read together from the newest state of the Delta log; None: no table yet."""
        return state_of(self._snapshot())

    def copied(self) -> Copied | None:
        """Return the last chunk of a copy in chunks; None before the first."""
        history = DeltaTable.forPath(self._spark, self.path).history(_RECENT).select("version", "userMetadata")
        incarnation = self.incarnation()
        found = (chunk_in(text, incarnation) for _, text in history.orderBy(F.desc("version")).collect())
        return next((chunk for chunk in found if chunk is not None), None)

    def memory(self, position: Lsn) -> str | None:
        """Return what the commit that led to a position says that one has to know, to go on from there."""
        incarnation = self.incarnation()
        for limit in (_RECENT, None):
            table = DeltaTable.forPath(self._spark, self.path)
            history = (table.history(limit) if limit else table.history()).select("version", "userMetadata")
            for _, text in history.orderBy(F.desc("version")).collect():
                if position_in(text, incarnation) == position:
                    return memory_in(text, incarnation)
        message = f"the commit that led to {position} is gone from Delta's log of {self.schema.table}"
        raise DefiniteError(message, "What is to be known to go on was in it: capture the table anew (RETRY TABLE).")

    def position(self) -> Lsn | None:
        """Return the position that the table stands at; None: no table yet."""
        state = self.state()
        return state.position if state else None

    def version(self) -> int | None:
        """Return the newest Delta version; None: no table yet."""
        state = self.state()
        return state.version if state else None

    def versions(self, limit: int | None = None) -> list[tuple[int, Lsn]]:
        """Return the versions that are whole positions, newest first, of the newest `limit` commits."""
        incarnation = self.incarnation()
        table = DeltaTable.forPath(self._spark, self.path)
        history = (table.history(limit) if limit else table.history()).select("version", "userMetadata")
        found = []
        for version, text in history.orderBy(F.desc("version")).collect():
            position = position_in(text, incarnation)
            if position is not None:
                found.append((version, position))
        return found

    def current(self) -> DataFrame:
        """Return the table as it is now."""
        return self.at(self._snapshot().version())

    def widened(self, rows: DataFrame) -> DataFrame:
        """Return rows that were read before the table gained columns, with these columns."""
        return widened(self._spark, rows, list(self.schema.columns)[len(rows.columns) :])

    def at(self, version: int) -> DataFrame:
        """Return the table as it was at a Delta version."""
        return self._spark.read.format("delta").option("versionAsOf", version).load(self.path)

    # -- how --------------------------------------------------------------------------------------------------------

    def _merge(self, net: DataFrame, mark: _Mark, contents: Contents) -> None:
        if self.schema.key and contents.truncated is not None:
            self._write(self._without_base(net, contents), mark, "overwrite")
        elif self.schema.key and contents.inserts_only:
            self._write(net, mark, "append")
        else:
            with _at_hand(net) as read_once:
                (self._merge_keys if self.schema.key else self._merge_bag)(read_once, mark, contents)

    def _merge_keys(self, net: DataFrame, mark: _Mark, contents: Contents) -> None:
        if contents.unchanged and contents.moved:
            with _at_hand(self._filled(net, contents)) as filled_once:
                self._merge_rows(filled_once, mark, kept=False)
        else:
            self._merge_rows(net, mark, kept=contents.unchanged)

    def _merge_rows(self, source: DataFrame, mark: _Mark, *, kept: bool) -> None:
        """Merge rows by key; `kept`: values that are left out stay those of the target."""
        names = self.schema.columns.names
        left_out = {name: index for index, name in toastable(self.schema)} if kept else {}
        updated: dict[str, str | Column] = {quoted(name): _updated(name, left_out.get(name)) for name in names}
        inserted: dict[str, str | Column] = {
            quoted(name): _inserted(name, left_out.get(name), self.schema) for name in names
        }
        match = within_keys(source, self.schema, "target")
        for name in self.schema.key:
            match &= column(name, "target") == column(name, "source")
        gone = F.col("source._gone")
        merge = self._target(mark).merge(source.alias("source"), match)
        merge = merge.whenMatchedDelete(gone).whenMatchedUpdate(set=updated)
        merge.whenNotMatchedInsert(~gone, values=inserted).execute()

    def _merge_bag(self, net: DataFrame, mark: _Mark, contents: Contents) -> None:
        """Take out all copies of rows that become fewer, and put in as many as there are to be."""
        fewer = net.filter(F.col("_count") < 0)
        reach = within_rows(fewer, self.schema, "target")
        base = self.current().alias("target").filter(reach)
        if contents.truncated is not None:
            base = base.limit(0)
        repeat = F.explode(F.array_repeat(F.lit(True), F.col("_count").cast("int")))
        new = replaced_rows(base, net, self.schema).withColumn(own("new"), repeat)
        if contents.truncated is not None or contents.inserts_only:
            self._write(new, mark, "append" if contents.inserts_only else "overwrite")
            return
        match = reach & ~F.col(f"source.{own('new')}") & same_row(base, self.schema, "target", "source")
        values: dict[str, str | Column] = {quoted(name): column(name, "source") for name in self.schema.columns.names}
        with _at_hand(fewer.withColumn(own("new"), F.lit(False)).unionByName(new)) as source:
            merge = self._target(mark).merge(source.alias("source"), match).whenMatchedDelete()
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
        writer.option("userMetadata", of_position(self.incarnation(), state.position)).save(self.path)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the Delta table; the position stays."""
        told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._spark.sql(f"ALTER TABLE delta.{quoted(self.path)} SET TBLPROPERTIES ({told})")

    def _write(self, rows: DataFrame, mark: _Mark, mode: str) -> None:
        writer: DataFrameWriter = rows.select(*map(column, self.schema.columns.names)).write.format("delta").mode(mode)
        writer = writer.option("txnAppId", mark.application).option("txnVersion", int(mark.position))
        writer.option("userMetadata", mark.told).save(self.path)

    def _mark(self, position: Lsn, copied: Copied | None = None, memory: str | None = None) -> _Mark:
        incarnation = self.incarnation()
        if copied is not None:
            return _Mark(position, f"{incarnation} {_COPYING}", of_chunk(incarnation, copied))
        return _Mark(position, incarnation, of_position(incarnation, position, memory))

    def _target(self, mark: _Mark) -> DeltaTable:
        """Return the table as a MERGE sees it, in a session set to mark the commit with `position`."""
        settings = self._session.conf
        settings.set("spark.databricks.delta.write.txnAppId", mark.application)
        settings.set("spark.databricks.delta.write.txnVersion", str(int(mark.position)))
        settings.set("spark.databricks.delta.commitInfo.userMetadata", mark.told)
        settings.set("spark.databricks.delta.merge.materializeSource", "none")  # it is at hand, and always the same
        return DeltaTable.forPath(self._session, self.path).alias("target")

    def _filled(self, net: DataFrame, contents: Contents) -> DataFrame:
        return filled(self.current(), net, self.schema, contents)

    def _without_base(self, net: DataFrame, contents: Contents) -> DataFrame:
        present = net.filter(~F.col("_gone"))
        return filled(self.current().limit(0), present, self.schema, contents) if contents.unchanged else present

    def incarnation(self) -> str:
        """Return the random id of the table that lies at the path now."""
        incarnation = incarnation_of(self._snapshot())
        if incarnation is None:
            message = f"there is no base table of {self.schema.table} at {self.path}"
            raise DefiniteError(message, "Drop the source and capture it again: its tables are then copied afresh.")
        return incarnation

    def _snapshot(self) -> Any:
        return snapshot_of(self._spark, self.path)

    def _commented(self, comments: Mapping[str, str]) -> list[Column]:
        names = self.schema.columns.names
        return [column(n).alias(n, metadata={"comment": comments[n]}) if n in comments else column(n) for n in names]


@contextmanager
def _at_hand(net: DataFrame) -> Iterator[DataFrame]:
    """Keep a net effect while it is needed: it is read for its bounds, and twice by a MERGE.

    Delta would do the same for itself alone, and refuses a source that is only cached.
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
    return F.when(F.array_contains("source._unchanged", left_out), column(name, "target")).otherwise(value)


def _inserted(name: str, left_out: int | None, schema: TableSchema) -> Column:
    value = column(name, "source")
    if left_out is None:
        return value
    return F.when(F.array_contains("source._unchanged", left_out), absent_row(schema)).otherwise(value)
