"""Names of sources and tables: resolving the names that users give, and choosing local names for upstream tables.

A table is found by its local name or by its upstream name. Its local name is the upstream one, unless that is taken or
the user chose another.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.errors import UsageError
from penstock.model import TableName
from penstock.name_suggestions import nearest
from penstock.sources.interface import InstanceConfig

__all__ = [
    "free_name",
    "live_names_of",
    "local_names",
    "named_source",
    "named_sources",
    "named_table",
    "named_tables",
    "runnable_sources",
    "unique_local_names",
]


def named_sources(catalog: Catalog, name: str) -> list[SourceRecord]:
    """Return a source, or the shards of a sharded source; raise `UsageError` with the known names if there is none."""
    found = catalog.parts(name)
    if not found:
        known = ", ".join(dict.fromkeys(source.known_as for source in catalog.sources())) or "none"
        message = f"source {name} does not exist"
        raise UsageError(message, f"Sources of this home: {known}.")
    return found


def named_source(catalog: Catalog, name: str) -> SourceRecord:
    """Return one source; raise `UsageError` for a sharded source, of which a single shard must be named."""
    found = named_sources(catalog, name)
    if found[0].name != name:
        message = f"source {name} is sharded, and this operation requires a single shard"
        raise UsageError(message, f"Name a shard: {', '.join(record.name for record in found)}")
    return found[0]


def runnable_sources(catalog: Catalog) -> list[SourceRecord]:
    """Return the sources that can run: all that are neither being created nor being dropped."""
    return [r for r in catalog.sources() if r.state in (SourceState.READY, SourceState.FAILED)]


def named_table(catalog: Catalog, source: str, name: str) -> TableRecord:
    """Return a table by ``schema.table`` or its local name, both also after the name of the source."""
    part_of = named_source(catalog, source).known_as
    records = catalog.tables(source)
    found = _found(records, name)
    for qualifier in (source, part_of):
        found = found or _found(records, name.removeprefix(f"{qualifier}."))
    if found is None:
        known = ", ".join(str(record.upstream) for record in records) or "none"
        message = f"source {source} has no table {name}"
        names = [text for record in records for text in (str(record.upstream), record.local)]
        hint = live_names_of(name, {record.local: record.upstream for record in records}) or nearest(name, names)
        raise UsageError(message, f"{hint} Tables of this source: {known}.".strip())
    return found


def _found(records: Sequence[TableRecord], name: str) -> TableRecord | None:
    found = next((r for r in records if name == str(r.upstream)), None)
    found = found or next((r for r in records if name == r.local), None)
    return found or next((r for r in records if name == f"{r.upstream.schema}.{r.upstream.name}"), None)


def live_names_of(name: str, tables: Mapping[str, TableName]) -> str:
    """Return a hint with the names under which tables are found that have this name upstream, but for case.

    `tables` maps names to upstream tables. Tables whose names differ only in case have names that nobody would guess.
    """
    wanted = {name.lower(), name.partition(".")[2].lower()}
    same = [
        f"{upstream} is found as {known}"
        for known, upstream in tables.items()
        if {upstream.name.lower(), f"{upstream.schema}.{upstream.name}".lower()} & wanted
    ]
    return f"Upstream, {', '.join(same)}." if same else ""


def named_tables(catalog: Catalog, source: str, names: Sequence[str]) -> list[TableRecord]:
    """Return several tables, each once, in catalog order; all tables if none is named."""
    named_source(catalog, source)
    wanted = {named_table(catalog, source, name).upstream for name in names}
    return [record for record in catalog.tables(source) if not names or record.upstream in wanted]


def local_names(instance: InstanceConfig) -> dict[TableName, str]:
    """Return the local names of a source's tables, including those that cannot be captured."""
    aliases = {table.name: table.alias for table in instance.produced() if table.alias}
    return unique_local_names([*(table.name for table in instance.produced()), *instance.left_out()], aliases)


def unique_local_names(tables: Sequence[TableName], aliases: Mapping[TableName, str]) -> dict[TableName, str]:
    """Choose unique local names, ignoring case: the alias, else the upstream name, else one with schema and number."""
    own = dict(aliases)
    taken = {name.lower() for name in own.values()}
    names = [table.name.lower() for table in tables if table not in own]
    for table in tables:
        lower = table.name.lower()
        if table not in own and names.count(lower) == 1 and lower not in taken:
            own[table] = table.name
    taken |= {name.lower() for name in own.values()}
    for table in tables:
        if table not in own:
            own[table] = _longer_name(table, taken)
            taken.add(own[table].lower())
    return own


def free_name(table: TableName, taken: Collection[str]) -> str:
    """Choose the local name of an added table: the upstream name if it is free, else one with schema and number."""
    return table.name if table.name.lower() not in taken else _longer_name(table, taken)


def _longer_name(table: TableName, taken: Collection[str]) -> str:
    name = f"{table.schema}_{table.name}"
    numbered = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
    return next(name for name in numbered if name.lower() not in taken)
