"""Shards: several databases with the same tables, which users see as one source.

::

    home.create([url, url], "shards")
      ├─ source shards_s1   slot, log, frontier, base tables of its own ─┐
      └─ source shards_s2   the same ────────────────────────────────────┴─▶ shards.orders, with penstock_shard

Each shard is a source like any other: one that is down leaves the others alone. The catalog records the common name,
and shards are combined at name resolution, in queries and in commands.

`described` and `captured_as` resolve the URLs that a user gives: to one database or several shards, and to the source
that captures them already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.catalog.store import Catalog, SourceRecord
from penstock.engine.records import spec_of
from penstock.errors import DefiniteError, SourceExistsError, UsageError
from penstock.model import SHARD, TableName, TableSchema
from penstock.sources.interface import InstanceConfig, Source
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["captured_as", "described", "refuse_shard", "refuse_taken", "refuse_unlike", "refuse_unlike_tables"]


def refuse_taken(catalog: Catalog, source: Source, shards: Sequence[Source]) -> None:
    """Refuse names that a source has already, also those of its shards."""
    taken = {name: record for record in catalog.sources() for name in (record.name, record.known_as)}
    for name in (source.name, *(shard.name for shard in shards)):
        if name in taken:
            message = f"there is a source {name} already: it is {taken[name].state}"
            raise SourceExistsError(message, f"Drop it first: penstock drop {taken[name].known_as}")


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


_KEPT = ("publication", "slot", "password")
"""Options that, where they are not given again, are those that the source has."""


def described(url: str | Sequence[str], name: str | None = None, **options: Any) -> PostgresSource:
    """Describe the capture of a database; several are shards, which need a name."""
    urls = [url] if isinstance(url, str) else list(url)
    if len(urls) == 1:
        return PostgresSource.from_url(urls[0], name, **options)
    if name is None:
        message = "several databases, which have no name that they share"
        raise UsageError(message, "Name the source that they are shards of (--name).")
    return PostgresSource.from_urls(urls, name, **options)


def captured_as(catalog: Catalog, url: str | Sequence[str], **options: Any) -> str | None:
    """Return the name of the source that captures this database, or exactly these; refuse other options."""
    wanted = {shard.connection for shard in described(url, "wanted").shards().values()}
    for name, records in _together(catalog).items():
        specs = [spec for spec in map(spec_of, records) if isinstance(spec, PostgresSource)]
        if {spec.connection for spec in specs} != wanted:
            continue
        given = {key for key, value in options.items() if value is not None}
        if options and _told(described(url, name, **options).shards().values(), given) != _told(specs, given):
            message = f"this home captures that database already, as source {name}, with other options"
            raise UsageError(message, f"Leave the options out, or drop it first: penstock drop {name}")
        return name
    return None


def _together(catalog: Catalog) -> dict[str, list[SourceRecord]]:
    """Return all sources by the names that users gave."""
    found: dict[str, list[SourceRecord]] = {}
    for record in catalog.sources():
        found.setdefault(record.known_as, []).append(record)
    return found


def _told(specs: Iterable[PostgresSource], given: set[str]) -> dict[str, dict[str, Any]]:
    """Return what each of these sources was asked for, but for what goes without saying."""
    kept = {field for field in _KEPT if field not in given}
    return {spec.name: spec.model_dump(exclude=kept) for spec in specs}
