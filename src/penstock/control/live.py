"""Live views: all tables of the home's sources at one moment."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from functools import cached_property
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.history import not_copied
from penstock.changelog.interface import LoggedTable
from penstock.control.moment import AsOf
from penstock.control.recorded import instance_of
from penstock.control.sharded_tables import ShardedTable, sharded_tables
from penstock.control.wishes import dropped
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.layout import base_path, quarantine_path
from penstock.positions import Lsn
from penstock.sources.kinds import kinds
from penstock.sql.query import Wanted, resolve
from penstock.tables.base_state import State
from penstock.tables.live import live_table
from penstock.tables.quarantine import Quarantine
from penstock.tables.shards import union_of_shards

__all__ = ["Live"]


class Live:
    """Every table of every source, each source at one position: whole transactions, across tables.

    A table is named ``source.table``, or in full ``source.schema.table``. That of a source of several shards is one
    table with the column `penstock_shard`; each shard is there under the name of its own source, too.
    """

    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        spark: SparkSession,
        positions: Mapping[str, Lsn],
        timestamp: datetime | None,
        look: Callable[[AsOf | None], Live],
    ) -> None:
        """Show each source at its position; `look` makes a view of another moment."""
        self._home = home
        self._catalog = catalog
        self._spark = spark
        self._look = look
        self._tables = {record.source + "." + record.local: record for record in catalog.tables()}
        self._sharded = sharded_tables(catalog)
        self._made: dict[str, DataFrame] = {}
        self._others: dict[tuple[str, Lsn | datetime], Live] = {}
        self.positions = dict(positions)
        """The position of each source."""
        self.timestamp = timestamp
        """The moment that was asked for; of a view of now, the commit time of the last transaction that is visible."""

    @property
    def position(self) -> Lsn:
        """The position, where the home has one source."""
        if len(self.positions) != 1:
            message = "this home has several sources, each with its position"
            raise UsageError(message, "Use `positions`.")
        return next(iter(self.positions.values()))

    def tables(self) -> list[str]:
        """Return the names of all tables, readable or not; of shards, what they are together."""
        parts = {part for table in self._sharded.values() for part in table.parts.values()}
        return sorted([name for name in self._tables if name not in parts] + [*self._sharded, *self._quarantines])

    def table(self, name: str) -> DataFrame:
        """Return one table at this moment."""
        known = {".".join(parts): table for parts, table in self._names().items()}.get(name.lower())
        if known is None:
            message = f"there is no table {name}"
            raise UsageError(message, f"Known are: {', '.join(self.tables()) or 'none'}")
        if known not in self._made:
            self._made[known] = self._found(known)
        return self._made[known]

    @cached_property
    def _quarantines(self) -> dict[str, TableRecord]:
        """What tables refused, by name; a table of the same name goes before.

        Of a source whose kind is not installed here nothing is known; that hurts nobody else.
        """
        known = [source for source in self._catalog.sources() if source.kind in kinds()]
        produced = [(source.name, table) for source in known for table in instance_of(source).produced()]
        refusing = {(source, table.name) for source, table in produced if table.refuses()}
        tables = [record for record in self._tables.values() if (record.source, record.upstream) in refusing]
        named = {f"{record.source}.{record.local}_quarantine": record for record in tables}
        return {name: record for name, record in named.items() if name not in self._tables}

    def _found(self, known: str) -> DataFrame:
        if known in self._sharded:
            return self._together(self._sharded[known])
        if known in self._quarantines:
            record = self._quarantines[known]
            return Quarantine(self._spark, quarantine_path(self._home, record.source, record.local).absolute()).rows()
        return self._make(self._tables[known])

    def sql(self, query: str) -> DataFrame:
        """Run Spark SQL over the live tables, named ``source.table``.

        A name with ``AS OF TIMESTAMP '…'`` or ``AS OF LSN '…'`` behind it is that table at another moment.
        """
        resolved = resolve(query, self._names(), f"penstock_{uuid.uuid4().hex[:8]}_")
        frames = {view: self._wanted(wanted) for view, wanted in resolved.views.items()}
        for view, frame in frames.items():
            frame.createTempView(view)
        try:
            return self._spark.sql(resolved.text)
        finally:
            for view in frames:
                self._spark.catalog.dropTempView(view)

    def refresh(self) -> Live:
        """Return a view of now."""
        return self._look(None)

    def _wanted(self, wanted: Wanted) -> DataFrame:
        """Return a table at this moment or at that which the query names; such a view is kept with this one."""
        if wanted.as_of is None or wanted.table in self._quarantines:
            return self.table(wanted.table)
        sharded = self._sharded.get(wanted.table)
        source = sharded.source if sharded else self._tables[wanted.table].source
        asked = (source, wanted.as_of)
        if asked not in self._others:
            self._others[asked] = self._look({source: wanted.as_of})
        return self._others[asked].table(wanted.table)

    def _names(self) -> dict[tuple[str, ...], str]:
        """Name each table by its local name, and by its upstream name unless another one differs from it by case."""
        named: dict[str, TableRecord | ShardedTable] = {**self._tables, **self._sharded}
        upstream = {name: _upstream_name(record) for name, record in named.items()}
        count = Counter(upstream.values())
        full = {parts: name for name, parts in upstream.items() if count[parts] == 1}
        aside = {tuple(name.lower().split(".", 1)): name for name in self._quarantines}
        return aside | full | {(r.source.lower(), r.local.lower()): name for name, r in named.items()}

    def _together(self, table: ShardedTable) -> DataFrame:
        """Return a table of all shards; an error of one is that of the whole, which is never shown in part."""
        found = {}
        for shard, part in table.parts.items():
            try:
                found[shard] = self.table(part)
            except PenstockError as error:
                raise table.failed(shard, error) from error
        return union_of_shards(table.name, found)

    def _make(self, record: TableRecord) -> DataFrame:
        upto = self.positions.get(record.source)
        if upto is None:
            message = f"source {record.source} is being created or dropped"
            raise TransientError(message, "See `penstock status`.")
        logged = self._readable(record, upto)
        base = self._catalog.bases.newest(record.source, record.local, upto)
        if base is None:
            raise not_copied(record.upstream, self._catalog.bases.first(record.source, record.local), upto)
        path = base_path(self._home, record.source, record.local).absolute()
        log = self._catalog.log(record.source)
        at = State(base.version, base.position, base.schema, memory=base.memory)
        schema = (logged and logged.schema_within(base.position, upto)) or base.schema
        return live_table(self._spark, log, path, at, schema, upto)

    def _dropped(self, record: TableRecord) -> bool:
        """Say whether a table was dropped from its source, or is about to be, since this view was made or before."""
        now = [table.state for table in self._catalog.tables(record.source) if table.upstream == record.upstream]
        return not now or now[0] is TableState.DROPPING

    def _readable(self, record: TableRecord, upto: Lsn) -> LoggedTable | None:
        """Return the table in the log; raise its definite error where that holds at this position."""
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
            raise DefiniteError(message, record.remedy or "")
        if record.state is TableState.FAILED and logged is not None and logged.error is None:
            if captured[0].refuses() and self._ended_behind(record, upto):
                return logged
            raise DefiniteError(record.error or f"{record.upstream} is not captured", record.remedy or "")
        return logged

    def _ended_behind(self, record: TableRecord, upto: Lsn) -> bool:
        """Whether a table ended by itself beyond a position: its base stands just before where it did."""
        last = self._catalog.bases.newest(record.source, record.local, Lsn.LAST)
        return last is not None and upto <= last.position


def _upstream_name(record: TableRecord | ShardedTable) -> tuple[str, ...]:
    return record.source.lower(), record.upstream.schema.lower(), record.upstream.name.lower()
