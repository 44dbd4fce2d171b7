"""Live views: all tables of the home's sources at one position per source.

In a sharded source, the tables of the same name on all shards are read as one table (`ShardedTable`).
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from penstock.catalog.bases import KeptBase
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.as_of import no_snapshot_at
from penstock.changelog.interface import LoggedTable
from penstock.engine.as_of import AsOf
from penstock.engine.catalog_records import instance_of
from penstock.engine.leases import Held
from penstock.engine.requests import dropped
from penstock.engine.status import home_status
from penstock.engine.table_names import live_names_of
from penstock.errors import DefiniteError, PenstockError, TableError, TransientError, UsageError
from penstock.layout import base_path, quarantine_path
from penstock.live_names import register_names
from penstock.model import SHARD, TableName
from penstock.positions import Lsn
from penstock.sources.interface import STATUS_SOURCE
from penstock.sources.kinds import kinds
from penstock.spark.images import spark_schema
from penstock.spark.read_only import require_query
from penstock.sql.query import TableReference, resolve
from penstock.sql.show_statements import STATUS_TABLES, status_table
from penstock.tables.base_state import State
from penstock.tables.interface import TableStore
from penstock.tables.message_tables import message_tables

__all__ = ["Live", "ShardedTable", "sharded_tables"]

_STATUS = {f"{STATUS_SOURCE}.{name}": name for name in STATUS_TABLES}
"""The tables of the status, by their names in queries."""


class Live:
    """A consistent view of all tables: each source at one position, so that transactions are visible as a whole.

    A table is named ``source.table``, or in full ``source.schema.table``; if there is one source, `table` also accepts
    ``schema.table``. A table of a sharded source is the union of
    its shards, with the additional column `penstock_shard`; each shard can also be read alone, under the name of its
    own source. A table with rejected messages has them in ``source.table_quarantine``.

    The view retains the history that it needs for as long as it is referenced, and for ten minutes more for DataFrames
    that outlive it; `close` ends that at once.
    """

    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        store: TableStore,
        positions: Mapping[str, Lsn],
        timestamp: datetime | None,
        open_view: Callable[[AsOf | None], Live],
    ) -> None:
        """Read each source at its position; `open_view` returns a view as of another time."""
        self._home = home
        self._catalog = catalog
        self._store = store
        self._open_view = open_view
        self._tables = {record.source + "." + record.local: record for record in catalog.tables()}
        self._sharded = sharded_tables(catalog)
        self._frames: dict[str, DataFrame] = {}
        self._as_of_views: dict[tuple[str, Lsn | datetime], Live] = {}
        self.held: Held | None = None
        """The history that this view retains."""
        self.positions: Mapping[str, Lsn] = dict(positions)
        """The position of each source."""
        self.timestamp = timestamp
        """The requested timestamp; for a view as of now, the commit time of the last visible transaction."""

    @property
    def position(self) -> Lsn:
        """The position of the only source; raises `UsageError` if the home does not have exactly one."""
        if len(self.positions) != 1:
            message = "this home does not have exactly one source: each source has its own position"
            raise UsageError(message, "Use `positions`, which maps each source to its position.")
        return next(iter(self.positions.values()))

    def tables(self) -> list[str]:
        """Return the names of all tables, readable or not; the tables of a sharded source are listed once."""
        parts = {part for table in self._sharded.values() for part in table.parts.values()}
        return sorted([name for name in self._tables if name not in parts] + [*self._sharded, *self._quarantines])

    def table(self, name: str) -> DataFrame:
        """Return the rows of one table in this view."""
        names = {".".join(parts): table for parts, table in self._names().items()}
        known = names.get(name.lower())
        sources = {record.source.lower() for record in self._tables.values()}
        if known is None and "." in name and len(sources) == 1:
            known = names.get(f"{sources.pop()}.{name.lower()}")
        if known is None:
            raise self._no_table(name)
        if known in _STATUS:
            return self._status(_STATUS[known])
        if known not in self._frames:
            self._frames[known] = self._frame(known)
        return self._frames[known]

    def _no_table(self, name: str) -> UsageError:
        tables: dict[str, TableRecord | ShardedTable] = {**self._tables, **self._sharded}
        found = live_names_of(name, {known: tables[known].upstream for known in self.tables() if known in tables})
        hint = f"{found} Tables of this home: {', '.join(self.tables()) or 'none'}.".strip()
        return UsageError(f"there is no table {name}", hint)

    @cached_property
    def _quarantines(self) -> dict[str, TableRecord]:
        """The quarantines of tables, by name; a table of the same name takes precedence.

        A source whose kind is not installed here is skipped; the other sources are not affected.
        """
        known = [source for source in self._catalog.sources() if source.kind in kinds()]
        produced = [(source.name, table) for source in known for table in instance_of(source).produced()]
        refusing = {(source, table.name) for source, table in produced if table.refuses()}
        tables = [record for record in self._tables.values() if (record.source, record.upstream) in refusing]
        named = {f"{record.source}.{record.local}_quarantine": record for record in tables}
        return {name: record for name, record in named.items() if name not in self._tables}

    def _frame(self, known: str) -> DataFrame:
        if known in self._sharded:
            return self._union(self._sharded[known])
        if known in self._quarantines:
            return self._quarantine(self._quarantines[known])
        return self._live_frame(self._tables[known])

    def sql(self, query: str, *, read_only: bool = False) -> DataFrame:
        """Run a Spark SQL query over the live tables, named ``source.table``.

        ``AS OF TIMESTAMP '…'`` or ``AS OF LSN '…'`` after a table name reads that table as of another time. With
        `read_only`, raise `UsageError` for anything that is not a query.
        """
        resolved = resolve(query, self._names(), f"penstock_{uuid.uuid4().hex[:8]}_")
        if read_only:
            require_query(self._store.spark, resolved.text, set(resolved.views))
        frames = {view: self._frame_for(wanted) for view, wanted in resolved.views.items()}
        for view, frame in frames.items():
            frame.createTempView(view)
        try:
            return self._store.spark.sql(resolved.text)
        except AnalysisException as error:
            unknown = _unknown_table(error)
            if unknown is None or unknown[0] not in {name.partition(".")[0] for name in self.tables()}:
                raise
            raise self._no_table(".".join(unknown)) from None
        finally:
            for view in frames:
                self._store.spark.catalog.dropTempView(view)

    def register(self) -> Live:
        """Let ``spark.table("shop.orders")`` and ``spark.sql("… FROM shop.orders")`` read this view; return the view.

        The names resolve in the session of this view until another view is registered in it, as in
        ``live.refresh().register()``. All tables of a query, and all queries until then, have the same position. The
        session keeps the view, and thereby its history, until then.
        """
        register_names(self._store.spark, self)
        return self

    def close(self) -> None:
        """Release the history that this view retains; its DataFrames can no longer be relied on."""
        for view in (self, *self._as_of_views.values()):
            if view.held is not None:
                view.held.close()

    def columns(self, name: str) -> StructType | None:
        """Return the columns of a table at its latest base, from the catalog; None if it has none yet."""
        if name in self._sharded:
            parts = [self.columns(part) or StructType() for part in self._sharded[name].parts.values()]
            fields = {field.name: field for part in parts for field in part.fields}
            return StructType([StructField(SHARD, StringType()), *fields.values()]) if fields else None
        if name in self._quarantines:
            return self.table(name).schema
        record = self._tables[name]
        base = self._catalog.bases.newest(record.source, record.local, Lsn.LAST)
        return None if base is None else spark_schema(base.schema.columns)

    def refresh(self) -> Live:
        """Return a view as of now."""
        return self._open_view(None)

    def _status(self, name: str) -> DataFrame:
        """Return a table of the status, as of now."""
        table: DataFrame = self._store.rows(status_table(name, home_status(self._home, self._catalog)))
        return table

    def _frame_for(self, wanted: TableReference) -> DataFrame:
        """Return a table at this view's position, or AS OF the one in the query; views of the latter are cached."""
        if wanted.table in _STATUS:
            if wanted.as_of is not None:
                message = f"{wanted.table} has no history"
                raise UsageError(message, "Omit AS OF: a table of the status shows the status as of now.")
            return self._status(_STATUS[wanted.table])
        if wanted.as_of is None or wanted.table in self._quarantines:
            return self.table(wanted.table)
        sharded = self._sharded.get(wanted.table)
        source = sharded.source if sharded else self._tables[wanted.table].source
        key = (source, wanted.as_of)
        if key not in self._as_of_views:
            self._as_of_views[key] = self._open_view({source: wanted.as_of})
        return self._as_of_views[key].table(wanted.table)

    def _names(self) -> dict[tuple[str, ...], str]:
        """Map names to tables: local names, and upstream names that are unique regardless of case."""
        named: dict[str, TableRecord | ShardedTable] = {**self._tables, **self._sharded}
        upstream = {name: _upstream_name(record) for name, record in named.items()}
        count = Counter(upstream.values())
        full = {parts: name for name, parts in upstream.items() if count[parts] == 1}
        quarantines = {tuple(name.lower().split(".", 1)): name for name in self._quarantines}
        status: dict[tuple[str, ...], str] = {(STATUS_SOURCE, table): name for name, table in _STATUS.items()}
        return status | quarantines | full | {(r.source.lower(), r.local.lower()): name for name, r in named.items()}

    def _union(self, table: ShardedTable) -> DataFrame:
        """Return the union of a table's shards; an error of one shard is raised, so the result is never partial."""
        found = {}
        for shard, part in table.parts.items():
            try:
                found[shard] = self.table(part)
            except PenstockError as error:
                raise table.failed(shard, error) from error
        rows: DataFrame = self._store.union_of_shards(table.name, found)
        return rows

    def _live_frame(self, record: TableRecord) -> DataFrame:
        upto = self.positions.get(record.source)
        if upto is None:
            message = f"source {record.source} is being created or dropped"
            raise TransientError(message, "Run `penstock status` to see its state.")
        kept = self._catalog.bases.kept(record.source).get(record.local)
        if kept is not None and kept.position <= upto <= kept.until and not self._dropped(record):
            earlier: DataFrame = self._store.base(self._base_path(record), kept.schema).at(kept.version)
            return earlier
        logged = self._readable(record, upto)
        base = self._catalog.bases.newest(record.source, record.local, upto)
        if base is None and kept is not None:
            raise _captured_again(record, kept)
        if base is None:
            raise no_snapshot_at(record.upstream, self._catalog.bases.first(record.source, record.local), upto)
        path = self._base_path(record)
        log = self._catalog.log(record.source)
        at = State(base.version, base.position, base.schema, memory=base.memory)
        schema = (logged and logged.schema_within(base.position, upto)) or base.schema
        try:
            rows: DataFrame = self._store.live(log, path, at, schema, upto)
            if (messages := message_tables(log)) is not None and record.state is TableState.LIVE:
                base_table, stored = self._store.base(path, base.schema), self._quarantine_path(record)
                messages.check_limit(self._store.spark, stored, base_table, at, upto, record.local)
        except TableError as error:
            self._note_error(record, error)
            raise
        if self._catalog.errors_ahead(record.source).get(record.local, (Lsn.LAST,))[0] <= upto:
            self._note_error(record, None)  # its cause was fixed: this position can be read now
        return rows

    def _note_error(self, record: TableRecord, error: TableError | None) -> None:
        """Record the error of a view for the status at once: apply reaches that position later, and may be busy."""
        last = self._catalog.bases.newest(record.source, record.local, Lsn.LAST)
        if error is None or last is None or last.position < error.lsn:
            with suppress(PenstockError):  # a user without write access to the home can still read
                self._catalog.note_error_ahead(record, error)

    def _base_path(self, record: TableRecord) -> Path:
        return base_path(self._home, record.source, record.local).absolute()

    def _quarantine_path(self, record: TableRecord) -> Path:
        return quarantine_path(self._home, record.source, record.local).absolute()

    def _quarantine(self, record: TableRecord) -> DataFrame:
        """Return the quarantined messages of a table, including those that apply has not reached yet."""
        messages = message_tables(self._catalog.log(record.source))
        assert messages is not None, "only tables of messages are quarantined"
        stored, upto = self._quarantine_path(record), self.positions.get(record.source)
        base = None if upto is None else self._catalog.bases.newest(record.source, record.local, upto)
        if base is None or record.state is not TableState.LIVE:
            return messages.quarantine(self._store.spark, stored, None, None, None)
        table = self._store.base(self._base_path(record), base.schema)
        at = State(base.version, base.position, base.schema, memory=base.memory)
        return messages.quarantine(self._store.spark, stored, table, at, upto)

    def _dropped(self, record: TableRecord) -> bool:
        """Return whether a table was dropped from its source, or is being dropped, before or after this view began."""
        now = [table.state for table in self._catalog.tables(record.source) if table.upstream == record.upstream]
        return not now or now[0] is TableState.DROPPING

    def _readable(self, record: TableRecord, upto: Lsn) -> LoggedTable | None:
        """Return the table as the log knows it; raise its permanent error if that applies at this position."""
        source = self._catalog.source(record.source)
        if self._dropped(record):
            raise DefiniteError(*dropped(source.known_as if source else record.source, record.upstream))
        captured = [] if source is None else [t for t in instance_of(source).produced() if t.name == record.upstream]
        with closing(self._catalog.log(record.source).reader()) as log:
            logged = log.tables().get(record.upstream)
        if logged is not None and logged.error is not None and upto >= logged.error.lsn:
            raise logged.error
        if not captured:
            message = f"{record.upstream} is not captured" + (f": {record.error}" if record.error else "")
            raise DefiniteError(message, record.hint or "")
        if record.state is TableState.FAILED and logged is not None and logged.error is None:
            if captured[0].refuses() and self._is_readable_at(record, upto):
                return logged
            raise DefiniteError(record.error or f"{record.upstream} is not captured", record.hint or "")
        return logged

    def _is_readable_at(self, record: TableRecord, upto: Lsn) -> bool:
        """Whether a failed table is readable up to a position: its base ends just before the error."""
        last = self._catalog.bases.newest(record.source, record.local, Lsn.LAST)
        return last is not None and upto <= last.position


def _captured_again(record: TableRecord, kept: KeptBase) -> TransientError:
    """Return the error for a position outside the one state of a table that is readable while it is copied again."""
    message = f"{record.upstream} is being captured again: its new snapshot is not complete"
    hint = (
        f"Its last consistent state is at {kept.until}: read all tables of a query AS OF LSN '{kept.until}'. Or wait,"
        " and run `penstock status`."
    )
    return TransientError(message, hint)


def _upstream_name(record: TableRecord | ShardedTable) -> tuple[str, ...]:
    return record.source.lower(), record.upstream.schema.lower(), record.upstream.name.lower()


def _unknown_table(error: AnalysisException) -> list[str] | None:
    """Return the parts of the name of a table that does not exist; None if the error is another one."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    return [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", name)] or None


@dataclass(frozen=True)
class ShardedTable:
    """A table of a sharded source: the union of the tables of its shards."""

    source: str
    """The name that the user gave."""
    upstream: TableName
    local: str
    parts: Mapping[str, str]
    """The name under which each shard's table is read alone, by shard. It includes shards that lack the table: reading
    those raises the error that says so."""

    @property
    def name(self) -> str:
        """The table's name in queries."""
        return f"{self.source}.{self.local}"

    def failed(self, shard: str, error: PenstockError) -> PenstockError:
        """Return the error of one shard as the error of the whole table; the hint names the shards to read instead."""
        others = ", ".join(name for other, name in self.parts.items() if other != shard)
        message = f"{self.name} cannot be read on shard {shard}: {error.message}"
        kind = TransientError if isinstance(error, TransientError) else DefiniteError
        return kind(message, f"{error.hint}\nThe other shards can be read by their own names: {others}.".strip())


def sharded_tables(catalog: Catalog) -> dict[str, ShardedTable]:
    """Return the tables of all sharded sources, by their names in queries."""
    shards: dict[str, dict[str, str]] = {}
    for record in catalog.sources():
        if record.part_of is not None and record.shard is not None:
            shards.setdefault(record.part_of, {})[record.shard] = record.name
    return {table.name: table for whole, parts in shards.items() for table in _tables(catalog, whole, parts)}


def _tables(catalog: Catalog, whole: str, shards: Mapping[str, str]) -> list[ShardedTable]:
    known: dict[TableName, dict[str, TableRecord]] = {}
    for source in shards.values():
        for record in catalog.tables(source):
            known.setdefault(record.upstream, {})[source] = record
    return [_table(whole, shards, records) for records in known.values()]


def _table(whole: str, shards: Mapping[str, str], records: Mapping[str, TableRecord]) -> ShardedTable:
    first = next(iter(records.values()))
    names = {shard: f"{source}.{records.get(source, first).local}" for shard, source in shards.items()}
    return ShardedTable(whole, first.upstream, first.local, names)
