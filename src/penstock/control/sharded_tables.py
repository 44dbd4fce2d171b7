"""The tables of sources that are made of shards: one table each, of the tables that the shards have of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.catalog.store import Catalog, TableRecord
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.model import TableName

__all__ = ["ShardedTable", "sharded_tables"]


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
        return kind(message, f"{error.remedy}\nThe other shards are read by their own names: {others}.".strip())


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
