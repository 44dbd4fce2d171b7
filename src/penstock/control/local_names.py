"""The names that tables have here: those that they have upstream, unless these are taken, or others were asked for."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from penstock.model import TableName
from penstock.sources.family import InstanceConfig

__all__ = ["free_name", "local_names", "told_apart"]


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
