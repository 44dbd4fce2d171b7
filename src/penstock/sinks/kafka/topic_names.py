"""The topic of each table of a sink: one for all, or a prefix and the name of the table.

``TOPIC PREFIX 'shop.'`` writes table ``public.orders`` to topic ``shop.public.orders``, as Debezium does with
``topic.prefix=shop``. A character of a table name that Kafka does not allow becomes ``_``. Debezium also cuts long
names; here they are an error, as are two tables with the same topic: consumers could not tell their rows apart. Kafka
has no two topics that differ only in ``.`` and ``_``, because their metrics would have the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import UsageError
from penstock.model import TableName

__all__ = ["check_topic_name", "positions_topic_name", "topic_name", "topics_of_tables"]

_LONGEST = 249
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9._-]")
_LAST_OF_16_BITS = "\uffff"
"""Java counts a character after this one as two."""


def check_topic_name(name: str) -> str:
    """Return a name; raise an error if Kafka does not allow it."""
    if not name or name in (".", "..") or _NOT_ALLOWED.search(name):
        message = f'"{name}" is not a valid topic name'
        raise UsageError(message, "Use letters, digits, dots, underscores and hyphens.")
    if len(name) > _LONGEST:
        message = f'topic name "{name}" is longer than {_LONGEST} characters'
        raise UsageError(message, "Use a shorter topic or prefix.")
    return name


def topic_name(table: TableName, *, prefix: str = "", fixed: str | None = None) -> str:
    """Return the topic of a table: the fixed one, if there is one; or prefix, schema, dot, and table."""
    if fixed is not None:
        return check_topic_name(fixed)
    if prefix:
        check_topic_name(prefix)
    return check_topic_name(prefix + _NOT_ALLOWED.sub(_replacement, str(table)))


def positions_topic_name(sink: str) -> str:
    """Return the default topic of positions of a sink; it has its own, as an open transaction of another would hide it.

    Sinks of the same name in several homes share it.
    """
    return check_topic_name("penstock-sink-positions-" + _NOT_ALLOWED.sub(_replacement, sink))


def topics_of_tables(
    tables: Iterable[TableName], *, prefix: str = "", fixed: str | None = None
) -> dict[TableName, str]:
    """Return the topic of each table; raise an error if two tables have the same, unless it is the fixed one."""
    found: dict[TableName, str] = {}
    first: dict[str, TableName] = {}
    for table in tables:
        found[table] = topic_name(table, prefix=prefix, fixed=fixed)
        other = first.setdefault(found[table].replace(".", "_"), table)
        if fixed is None and other != table:
            message = f"tables {other} and {table} have the same topic {found[table]}"
            if found[table] != found[other]:
                message = f"the topics of {other} and {table} differ only in dots and underscores"
            raise UsageError(message, "Create a sink of its own for one of them, with another topic.")
    return found


def _replacement(found: re.Match[str]) -> str:
    return "_" if found[0] <= _LAST_OF_16_BITS else "__"
