"""Shards: several databases with the same tables, which are one source to whoever asks.

::

    home.create([url, url], "shards")
      ├─ source shards_s1   slot, log, frontier, base tables of its own ─┐
      └─ source shards_s2   the same ────────────────────────────────────┴─▶ shards.orders, with penstock_shard

Each shard is a source like any other, and runs like any other: one that is down leaves the others alone. What makes
them one is in the catalog, the name that they are part of, and is looked at where names are: in queries, in commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.catalog.store import Catalog, SourceRecord
from penstock.errors import DefiniteError, SourceExists, UsageError
from penstock.model import SHARD, TableName, TableSchema
from penstock.sources.family import InstanceConfig, Source

__all__ = ["refuse_shard", "refuse_taken", "refuse_unlike", "refuse_unlike_tables"]


def refuse_taken(catalog: Catalog, source: Source, shards: Sequence[Source]) -> None:
    """Refuse names that a source has already, also those of its shards."""
    taken = {name: record for record in catalog.sources() for name in (record.name, record.known_as)}
    for name in (source.name, *(shard.name for shard in shards)):
        if name in taken:
            message = f"there is a source {name} already: it is {taken[name].state}"
            raise SourceExists(message, f"Drop it first: penstock drop {taken[name].known_as}")


def refuse_shard(record: SourceRecord, name: str) -> None:
    """Refuse to do with one shard what can be done with all of them only."""
    if record.part_of is not None and record.name == name:
        message = f"{name} is a shard of the source {record.part_of}, whose shards are alike"
        raise UsageError(message, f"Name the source: {record.part_of}")


def refuse_unlike(instances: Mapping[str | None, InstanceConfig]) -> None:
    """Refuse shards, by what tells them apart, that do not all have the same tables."""
    if len(instances) < 2:
        return
    tables = {str(shard): {t.name: t.table_schema() for t in each.produced()} for shard, each in instances.items()}
    left_out = {str(shard): instance.left_out() for shard, instance in instances.items()}
    for name in sorted({name for known in tables.values() for name in known}):
        lacking = next((shard for shard, known in tables.items() if name not in known), None)
        if lacking is not None:
            raise _lacking(name, lacking, left_out[lacking].get(name))
        refuse_unlike_tables(name, {shard: known[name] for shard, known in tables.items()})


def _lacking(name: TableName, shard: str, why: tuple[str, str] | None) -> DefiniteError:
    if why is None:
        message = f"{name} is not on shard {shard}, while others have it"
        return DefiniteError(message, "Make the shards alike, or name the tables that all of them have.")
    return DefiniteError(f"{name} cannot be captured on shard {shard}, while it can on others: {why[0]}", why[1])


def refuse_unlike_tables(name: TableName, schemas: Mapping[str, TableSchema]) -> None:
    """Refuse a table that has other columns, types or keys on some shard, or one that is called as ours is."""
    (first, like), *others = schemas.items()
    if not others:
        return
    if SHARD in (column.lower() for column in like.columns.names):
        message = f"{name} has a column {SHARD}, which is the name of the one that tells shards apart"
        raise DefiniteError(message, f"Rename it, or leave it out: exclude_columns = {name}.{SHARD}")
    for shard, schema in others:
        differs = _difference(like, schema)
        if differs:
            message = f"{name} is not the same on the shards {first} and {shard}: {differs}"
            raise DefiniteError(message, "Make them alike, or leave the column or the table out.")


def _difference(one: TableSchema, other: TableSchema) -> str | None:
    types = [{field.name: field.type for field in schema.columns} for schema in (one, other)]
    for column in dict.fromkeys([*types[0], *types[1]]):
        found = [str(known[column]) if column in known else "not there" for known in types]
        if found[0] != found[1]:
            return f"column {column} is {found[0]} on the one and {found[1]} on the other"
    if set(one.key) != set(other.key):
        return f"its key is ({', '.join(one.key)}) on the one and ({', '.join(other.key)}) on the other"
    return None
