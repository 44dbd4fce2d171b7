"""Shards: several databases with the same tables, which users see as one source.

::

    home.create([url, url], "shards")
      ├─ source shards_s1   slot, log, frontier, base tables of its own ─┐
      └─ source shards_s2   the same ────────────────────────────────────┴─▶ shards.orders, with penstock_shard

Each shard is a source like any other: one that is down does not affect the others. The catalog records the common name,
and shards are combined at name resolution, in queries and in commands.

A source of another kind may divide its work, too: `Source.create_instances` returns several configs, and each becomes a
shard, labelled by its number.

`described` and `captured_as` resolve the URLs that a user gives: to one database or several shards, and to the source
that captures them already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.catalog.store import Catalog, SourceRecord
from penstock.engine.catalog_records import spec_of
from penstock.errors import DefiniteError, SourceExistsError, UsageError
from penstock.model import SHARD, TableName, TableSchema
from penstock.sources.interface import InstanceConfig, Source
from penstock.sources.kinds import source_of_urls

__all__ = [
    "Part",
    "captured_as",
    "described",
    "parts_of",
    "reject_shard",
    "reject_taken",
    "reject_unlike",
    "reject_unlike_tables",
]


@dataclass(frozen=True)
class Part:
    """A part of a source that is captured on its own: an instance, with its log, process and external objects."""

    source: Source
    instance: InstanceConfig
    label: str | None
    """The value that distinguishes its rows; None if it is the only part."""


def parts_of(source: Source) -> list[Part]:
    """Return the parts of a source; this may query the upstream system, but creates nothing there."""
    found = []
    for shard_label, shard in source.shards().items():
        instances = shard.create_instances(os.cpu_count() or 1)
        numbers = [str(number) for number in range(1, len(instances) + 1)] if len(instances) > 1 else [None]
        for number, instance in zip(numbers, instances, strict=True):
            label = "/".join(filter(None, (shard_label, number))) or None
            found.append(Part(shard, instance, label))
    return found


def reject_taken(catalog: Catalog, names: Iterable[str]) -> None:
    """Raise `SourceExistsError` if a source or shard already has one of the names."""
    taken = {name: record for record in catalog.sources() for name in (record.name, record.known_as)}
    for name in names:
        if name in taken:
            message = f"source {name} already exists: it is {taken[name].state}"
            raise SourceExistsError(message, f"Drop it first: penstock drop {taken[name].known_as}")


def reject_shard(record: SourceRecord, name: str) -> None:
    """Raise `UsageError` if a single shard is named in an operation that applies to all shards."""
    if record.part_of is not None and record.name == name:
        message = f"{name} is a shard: this operation applies to all shards of source {record.part_of}"
        raise UsageError(message, f"Name the sharded source: {record.part_of}")


def reject_unlike(parts: Sequence[Part]) -> None:
    """Raise `DefiniteError` if the shards do not all have the same tables."""
    if len(parts) < 2:
        return
    instances = {str(part.label): part.instance for part in parts}
    tables = {shard: {t.name: t.table_schema() for t in each.produced()} for shard, each in instances.items()}
    left_out = {shard: instance.left_out() for shard, instance in instances.items()}
    for name in sorted({name for known in tables.values() for name in known}):
        lacking = next((shard for shard, known in tables.items() if name not in known), None)
        if lacking is not None:
            raise _lacking(name, lacking, left_out[lacking].get(name))
        reject_unlike_tables(name, {shard: known[name] for shard, known in tables.items()})


def _lacking(name: TableName, shard: str, why: tuple[str, str] | None) -> DefiniteError:
    if why is None:
        message = f"{name} does not exist on shard {shard}, but on other shards"
        return DefiniteError(message, "Create it there, or list only the tables that all shards have.")
    return DefiniteError(f"{name} cannot be captured on shard {shard}, but on other shards: {why[0]}", why[1])


def reject_unlike_tables(name: TableName, schemas: Mapping[str, TableSchema]) -> None:
    """Raise `DefiniteError` if columns, types or key of a table differ between shards, or a column name is reserved."""
    (first, expected), *others = schemas.items()
    if not others:
        return
    if SHARD in (column.lower() for column in expected.columns.names):
        message = f"{name} has a column {SHARD}, a name that is reserved in sharded sources"
        raise DefiniteError(message, f"Rename it, or exclude it: exclude_columns = {name}.{SHARD}")
    for shard, schema in others:
        differs = _difference(expected, schema)
        if differs:
            message = f"{name} differs between the shards {first} and {shard}: {differs}"
            raise DefiniteError(message, "Make the definitions equal, or exclude the column or the table.")


def _difference(one: TableSchema, other: TableSchema) -> str | None:
    types = [{field.name: field.type for field in schema.columns} for schema in (one, other)]
    for column in dict.fromkeys([*types[0], *types[1]]):
        found = [str(known[column]) if column in known else "missing" for known in types]
        if found[0] != found[1]:
            return f"column {column} is {found[0]} on the first and {found[1]} on the second"
    if set(one.key) != set(other.key):
        return f"the key is ({', '.join(one.key)}) on the first and ({', '.join(other.key)}) on the second"
    return None


def described(url: str | Sequence[str], name: str | None = None, **options: Any) -> Source:
    """Return the specification of a source for a database, or for several shards, which need a name."""
    return source_of_urls([url] if isinstance(url, str) else list(url), name, **options)


def captured_as(catalog: Catalog, url: str | Sequence[str], **options: Any) -> str | None:
    """Return the name of the source that captures exactly these databases; raise `UsageError` if its options differ."""
    wanted = {shard.upstream() for shard in described(url, "wanted").shards().values()}
    for name, records in _by_user_name(catalog).items():
        specs = [spec_of(record) for record in records]
        if {spec.upstream() for spec in specs} != wanted:
            continue
        given = {key for key, value in options.items() if value is not None}
        if options and _comparable_options(
            described(url, name, **options).shards().values(), given
        ) != _comparable_options(specs, given):
            message = f"source {name} already captures this database, with other options"
            raise UsageError(message, f"Omit the options, or drop the source first: penstock drop {name}")
        return name
    return None


def _by_user_name(catalog: Catalog) -> dict[str, list[SourceRecord]]:
    """Return all sources, grouped by their user-given names."""
    found: dict[str, list[SourceRecord]] = {}
    for record in catalog.sources():
        found.setdefault(record.known_as, []).append(record)
    return found


def _comparable_options(specs: Iterable[Source], given: set[str]) -> dict[str, dict[str, Any]]:
    """Return the options of each source, without those that keep their current value."""
    return {spec.name: spec.model_dump(exclude=set(spec.KEPT - given)) for spec in specs}
