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
from penstock.nearest import nearest
from penstock.sources.interface import InstanceConfig

__all__ = [
    "free_name",
    "local_names",
    "named_source",
    "named_sources",
    "named_table",
    "named_tables",
    "runnable_sources",
    "told_apart",
]


def named_sources(catalog: Catalog, name: str) -> list[SourceRecord]:
    """Look a source up, or the shards of which it is made; one that is not there is told with those that are."""
    found = catalog.parts(name)
    if not found:
        known = ", ".join(dict.fromkeys(source.known_as for source in catalog.sources())) or "none"
        message = f"there is no source {name}"
        raise UsageError(message, f"Known are: {known}")
    return found


def named_source(catalog: Catalog, name: str) -> SourceRecord:
    """Look one source up; of one that is made of shards, a shard has to be named."""
    found = named_sources(catalog, name)
    if found[0].name != name:
        message = f"source {name} is made of shards, and this can be done with one of them only"
        raise UsageError(message, f"Name a shard: {', '.join(record.name for record in found)}")
    return found[0]


def runnable_sources(catalog: Catalog) -> list[SourceRecord]:
    """Return the sources that can run: not those that are being made or dropped."""
    return [r for r in catalog.sources() if r.state in (SourceState.READY, SourceState.FAILED)]


def named_table(catalog: Catalog, source: str, name: str) -> TableRecord:
    """Look a table of a source up, as ``schema.table`` or as it is called here."""
    named_source(catalog, source)
    records = catalog.tables(source)
    found = next((r for r in records if name == str(r.upstream)), None)
    found = found or next((r for r in records if name == r.local), None)
    if found is None:
        known = ", ".join(str(record.upstream) for record in records) or "none"
        message = f"source {source} has no table {name}"
        names = [text for record in records for text in (str(record.upstream), record.local)]
        raise UsageError(message, f"{nearest(name, names) or ''} Its tables are: {known}.".strip())
    return found


def named_tables(catalog: Catalog, source: str, names: Sequence[str]) -> list[TableRecord]:
    """Look several up, each once, in the order of the catalog; all of them where none is named."""
    named_source(catalog, source)
    wanted = {named_table(catalog, source, name).upstream for name in names}
    return [record for record in catalog.tables(source) if not names or record.upstream in wanted]


def local_names(instance: InstanceConfig) -> dict[TableName, str]:
    """Name the tables of a source, also those that cannot be captured."""
    aliases = {table.name: table.alias for table in instance.produced() if table.alias}
    return told_apart([*(table.name for table in instance.produced()), *instance.left_out()], aliases)


def told_apart(tables: Sequence[TableName], aliases: Mapping[TableName, str]) -> dict[TableName, str]:
    """Name a table as asked for, else as upstream does; where that is taken, in any case, by its schema, a number."""
    own = {table: _folder_name(alias) for table, alias in aliases.items()}
    taken = {name.lower() for name in own.values()}
    names = [table.name.lower() for table in tables if table not in own]
    for table in tables:
        lower = table.name.lower()
        if table not in own and names.count(lower) == 1 and lower not in taken:
            own[table] = _folder_name(table.name)
    taken |= {name.lower() for name in own.values()}
    for table in tables:
        if table not in own:
            own[table] = _longer_name(table, taken)
            taken.add(own[table].lower())
    return own


def free_name(table: TableName, taken: Collection[str]) -> str:
    """Name a table that comes later as upstream does; where that is taken, in any case, by its schema, a number."""
    name = _folder_name(table.name)
    return name if name.lower() not in taken else _longer_name(table, taken)


def _longer_name(table: TableName, taken: Collection[str]) -> str:
    name = _folder_name(f"{table.schema}_{table.name}")
    numbered = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
    return next(name for name in numbered if name.lower() not in taken)


def _folder_name(name: str) -> str:
    """A local name is a folder's, too."""
    return name.replace("/", "_") if name.strip(".") else name.replace(".", "_")
