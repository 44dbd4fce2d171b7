"""Live views: all tables of the home's sources at one position per source.

A source that consists of shards has one table for the tables of its shards (`ShardedTable`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from pyspark.sql import DataFrame

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.as_of import not_copied
from penstock.changelog.interface import LoggedTable
from penstock.engine.as_of import AsOf
from penstock.engine.records import instance_of
from penstock.engine.requests import dropped
from penstock.errors import DefiniteError, PenstockError, TableError, TransientError, UsageError
from penstock.layout import base_path, quarantine_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kinds import kinds
from penstock.sql.query import Wanted, resolve
from penstock.tables.base_state import State
from penstock.tables.interface import TableStore
from penstock.tables.quarantine import Quarantine
from penstock.tables.topic_tail import check_quarantine_limit, live_quarantine

__all__ = ["Live", "ShardedTable", "sharded_tables"]


class Live:
    """Every table of every source, each source at one position: whole transactions, across tables.

    A table is named ``source.table``, or in full ``source.schema.table``. That of a source of several shards is one
    table with the column `penstock_shard`; each shard is there under the name of its own source, too.
    """

    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        store: TableStore,
        positions: Mapping[str, Lsn],
        timestamp: datetime | None,
        look: Callable[[AsOf | None], Live],
    ) -> None:
        """Show each source at its position; `look` makes a view of another moment."""
        self._home = home
        self._catalog = catalog
        self._store = store
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
            return self._quarantine(self._quarantines[known])
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
            return self._store.spark.sql(resolved.text)
        finally:
            for view in frames:
                self._store.spark.catalog.dropTempView(view)

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
        rows: DataFrame = self._store.union_of_shards(table.name, found)
        return rows

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
        try:
            rows: DataFrame = self._store.live(log, path, at, schema, upto)
            if isinstance(log, TopicLog) and record.state is TableState.LIVE:
                base_table, stored = self._store.base(path, base.schema), self._stored_quarantine(record)
                check_quarantine_limit(self._store.spark, log, stored, base_table, at, upto, record.local)
        except TableError as error:
            self._note_error(record, error)
            raise
        if self._catalog.errors_ahead(record.source).get(record.local, (Lsn.LAST,))[0] <= upto:
            self._note_error(record, None)  # it was to be passed over, since
        return rows

    def _note_error(self, record: TableRecord, error: TableError | None) -> None:
        """Let the status show at once at what a view ends; apply comes there later, and may be busy."""
        last = self._catalog.bases.newest(record.source, record.local, Lsn.LAST)
        if error is None or last is None or last.position < error.lsn:
            with suppress(PenstockError):  # who may not write in the home can read
                self._catalog.note_error_ahead(record, error)

    def _stored_quarantine(self, record: TableRecord) -> Quarantine:
        path = quarantine_path(self._home, record.source, record.local).absolute()
        return Quarantine(self._store.spark, path)

    def _quarantine(self, record: TableRecord) -> DataFrame:
        """Return what a table has put aside, and what it will when apply comes there."""
        stored = self._stored_quarantine(record)
        upto = self.positions.get(record.source)
        base = None if upto is None else self._catalog.bases.newest(record.source, record.local, upto)
        log = self._catalog.log(record.source)
        if base is None or upto is None or record.state is not TableState.LIVE or not isinstance(log, TopicLog):
            return stored.rows()
        table = self._store.base(base_path(self._home, record.source, record.local).absolute(), base.schema)
        at = State(base.version, base.position, base.schema, memory=base.memory)
        return live_quarantine(self._store.spark, log, stored, table, at, upto)

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
            raise DefiniteError(message, record.hint or "")
        if record.state is TableState.FAILED and logged is not None and logged.error is None:
            if captured[0].refuses() and self._ended_behind(record, upto):
                return logged
            raise DefiniteError(record.error or f"{record.upstream} is not captured", record.hint or "")
        return logged

    def _ended_behind(self, record: TableRecord, upto: Lsn) -> bool:
        """Whether a table ended by itself beyond a position: its base stands just before where it did."""
        last = self._catalog.bases.newest(record.source, record.local, Lsn.LAST)
        return last is not None and upto <= last.position


def _upstream_name(record: TableRecord | ShardedTable) -> tuple[str, ...]:
    return record.source.lower(), record.upstream.schema.lower(), record.upstream.name.lower()


@dataclass(frozen=True)
class ShardedTable:
    """A table of all shards."""

    source: str
    """The name that the user gave."""
    upstream: TableName
    local: str
    parts: Mapping[str, str]
    """The names under which shards are read alone, by what tells these apart. Also of one that does not have the table:
    reading it tells that."""

    @property
    def name(self) -> str:
        """Its name in queries."""
        return f"{self.source}.{self.local}"

    def failed(self, shard: str, error: PenstockError) -> PenstockError:
        """Return the error of one shard as that of the table, with what can be read all the same."""
        others = ", ".join(name for other, name in self.parts.items() if other != shard)
        message = f"{self.name} cannot be read whole: on shard {shard}, {error.message}"
        kind = TransientError if isinstance(error, TransientError) else DefiniteError
        return kind(message, f"{error.hint}\nThe other shards are read by their own names: {others}.".strip())


def sharded_tables(catalog: Catalog) -> dict[str, ShardedTable]:
    """Return the tables of sources that are made of shards, by their names in queries."""
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
