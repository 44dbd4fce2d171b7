"""Watch the catalogs for changes that the stream does not report: changes not published, rows changed without WAL.

A table that is removed from the publication, dropped, or filtered differently just sends no changes, or other ones.
Rows that are attached or detached with a partition, or that an ``ALTER TABLE`` rewrites, send none. So capture reads
the catalogs: at each connect, every few seconds, and at once when the stream describes a table again. It compares them
with the *facts* of the last check, which are in the instance config. Facts change with every DDL statement, even if it
is reverted between two checks (see `catalog_facts`). An error gets the last position at which the table was proven
complete, as changes may be missing after it.

**A changed filenode.** ``VACUUM FULL`` and ``CLUSTER`` rewrite a table without changing rows; ``ALTER TABLE`` may
change all of them. The difference::

    a column was altered, too            → its values may have changed: the table stops
    a row has an older xmin than the     → harmless: VACUUM FULL and CLUSTER keep xmin, ALTER TABLE rewrites every row
      oldest transaction of the last check
    the stream contains a TRUNCATE       → harmless. It may not have arrived yet, so the decision waits until the log
                                           has reached the end of the WAL as of the check
    none of these                        → unchanged rows cannot be proven: the table stops

**Columns** are compared by their numbers, which Postgres never uses again. A column whose number no column has any more
was dropped, and is recorded in the facts; a later column of the same name has another number. One whose number a column
of another name has was renamed: it is the same column.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from penstock.errors import DefiniteError, SchemaChangeError, TableError
from penstock.fields import with_fields
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.options import Ownership, Rules
from penstock.sources.postgres.replication.catalog_facts import Facts, TableFacts, read_facts
from penstock.sources.postgres.replication.publication import OPERATIONS, Publication, read_publication
from penstock.sources.postgres.replication.wal import wal_insert_position

__all__ = ["PublicationWatch"]

_SECONDS = 2.0
_NEEDED = frozenset({"insert", "update", "delete"})
"""Required of a user's publication under the open rules; any other must also publish TRUNCATE."""
_PAGES = 256
"""The number of pages of a table to search for an older row."""
_QUOTED = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""


class _Problem(NamedTuple):
    """Why changes of a table may be missing."""

    why: str
    kind: type[TableError] = TableError


class PublicationWatch:
    """Checks periodically that all changes of a source are published."""

    def __init__(self, config: PostgresInstanceConfig, proven: Lsn, truncated: Iterable[TableName] = ()) -> None:
        """Begin with the facts of the config; `truncated` are tables with a TRUNCATE in the log since then."""
        self._config = config
        self._proven = dict.fromkeys((table.name for table in config.tables), proven)
        """The position up to which all changes of a table were sent; without tables that have an error."""
        self._truncated = set(truncated)
        self._suspected: dict[TableName, Lsn] = {}
        """Tables whose filenode changed for an unknown reason, and the end of the WAL when that was noticed."""
        self._next = 0.0
        self._columns = {table.name: table.columns for table in config.tables}
        self.facts = config.facts
        self._stayed: dict[int, set[str]] = {}
        """The columns of each table, by OID, that existed at the last check, under any name."""

    def is_due(self) -> bool:
        """Return whether the next check is due."""
        return time.monotonic() >= self._next

    def check_soon(self) -> None:
        """Make the next check due at once."""
        self._next = 0.0

    def update_columns(self, tables: Iterable[CapturedTable]) -> None:
        """Update the columns of tables: some may have been added or renamed."""
        self._columns.update({table.name: table.columns for table in tables})

    def record_truncate(self, tables: Iterable[TableName]) -> None:
        """Record a TRUNCATE in the stream: it explains a changed filenode."""
        self._truncated.update(tables)

    def check(self, connection: psycopg.Connection[Any], durable: Lsn) -> list[TableError]:
        """Check the catalogs; return an error for each table that may miss changes, once for each table.

        Tables without an error are proven complete up to `durable`: all of it committed before this check.
        """
        self._next = time.monotonic() + _SECONDS
        now = read_facts(connection, self._config.publication, [table.oid for table in self._config.tables])
        publication = read_publication(connection, self._config.publication)
        before = self.facts or now
        now = self._with_dropped(before, now)
        self._stayed = {
            table.oid: _stayed(self._numbers(table, before), now.tables[table.oid])
            for table in self._config.tables
            if table.oid in now.tables
        }
        if publication is None or now.publication is None:
            how = "no longer exists"
            raise self._lost_publication(how)
        if before.publication is not None and before.publication[0] != now.publication[0]:
            how = "was dropped and created again"
            raise self._lost_publication(how)
        self._require_meta_tables(publication)
        tables = [table for table in self._config.tables if table.name in self._proven]
        found = [(table, self._problem(connection, table, publication, before, now, durable)) for table in tables]
        errors = [self._error(table, why) for table, why in found if why is not None]
        intact = [table for table, why in found if why is None]
        proven = [table for table in intact if table.name not in self._suspected]
        self._proven = {
            table.name: max(self._proven[table.name], durable if table in proven else Lsn.ZERO) for table in intact
        }
        self.facts = _next_facts(before, now, proven, durable)
        return errors

    def _problem(
        self,
        connection: psycopg.Connection[Any],
        table: CapturedTable,
        publication: Publication,
        before: Facts,
        now: Facts,
        durable: Lsn,
    ) -> _Problem | None:
        """Return why changes of a table may be missing; None if it is complete."""
        facts, known = now.tables.get(table.oid), before.tables.get(table.oid)
        if facts is None:
            return _Problem("the table was dropped upstream")
        why = _not_published(table, facts, publication, self._needed())
        if why is None and known is not None and before.publication != now.publication:
            why = (
                f'publication "{publication.name}" was altered upstream, and may not have published all changes'
                " meanwhile"
            )
        if why is None and known is not None:
            why = _published_differently(known, facts, publication)
        if why is not None or known is None:
            return None if why is None else _Problem(why)
        why = _changed_partitions(known, facts) or self._rewritten(connection, table, known, facts, durable)
        return None if why is None else _Problem(why, SchemaChangeError)

    def _rewritten(
        self,
        connection: psycopg.Connection[Any],
        table: CapturedTable,
        before: TableFacts,
        now: TableFacts,
        durable: Lsn,
    ) -> str | None:
        """Return why values may have changed without WAL, if they may; see the module's docstring."""
        columns, names = self._columns[table.name], now.names()
        numbers = _numbers(columns, before)
        gone = [column for column in columns if not _exists(column, numbers, now)]
        others = {name for number, name in names.items() if number not in numbers.values()}
        again = [column.name for column in gone if column.upstream in others]
        if again:
            return f"columns were dropped upstream and added again: {', '.join(again)}"
        lost = [column.name for column in gone if column.name not in now.dropped or not table.can_lose(column.name)]
        if lost:
            return f"its columns changed upstream (dropped or renamed: {', '.join(lost)})"
        renamed = [name for name, number in numbers.items() if names.get(number, name) != name]
        if renamed and not table.can_rename:
            return f"its columns changed upstream (renamed: {', '.join(renamed)})"
        altered = _altered(numbers, before, now)
        changed = [oid for oid, file in now.files.items() if file and before.files.get(oid, file) != file]
        if changed and altered:
            return f"the table was rewritten upstream, and columns were altered: {', '.join(altered)}"
        if (
            not changed
            or table.name in self._truncated
            or all(_has_older_row(connection, oid, before.horizon) for oid in changed)
        ):
            self._suspected.pop(table.name, None)
            self._truncated.discard(table.name)
            return None
        if durable < self._suspected.setdefault(table.name, wal_insert_position(connection)):
            return None
        return (
            "the table was rewritten upstream (new filenode, no row with an older xmin), and the rewrite may have"
            " changed rows"
        )

    def _with_dropped(self, before: Facts, now: Facts) -> Facts:
        """Return the current facts with the captured columns that were dropped since, or before."""
        known = {table.oid: table for table in self._config.tables}
        tables = {
            oid: with_fields(facts, dropped=_dropped(self._numbers(known[oid], before), before.tables[oid], facts))
            for oid, facts in now.tables.items()
            if oid in before.tables and oid in known
        }
        return with_fields(now, tables={**now.tables, **tables})

    def _numbers(self, table: CapturedTable, before: Facts) -> dict[str, int]:
        facts = before.tables.get(table.oid)
        return {} if facts is None else _numbers(self._columns[table.name], facts)

    def existing_columns(self, table: CapturedTable) -> set[str] | None:
        """Return the columns that exist, under any name; None if the last check did not prove that no value changed.

        A column whose number is unknown is not among them.
        """
        is_proven = table.name in self._proven and table.name not in self._suspected
        return self._stayed.get(table.oid) if is_proven else None

    def _needed(self) -> frozenset[str]:
        users = self._config.publication_ownership is Ownership.USER and self._config.rules is Rules.OPEN
        return _NEEDED if users else frozenset(OPERATIONS)

    def _lost_publication(self, how: str) -> DefiniteError:
        since = min(self._proven.values(), default=Lsn.ZERO)
        message = f'publication "{self._config.publication}" {how}: changes since {since} may be lost'
        return DefiniteError(
            message, f"Drop the source with `penstock drop {self._config.source}` and capture it again."
        )

    def _require_meta_tables(self, publication: Publication) -> None:
        """Raise if a meta table is not published: foreign writes to it would go unnoticed."""
        for table in self._config.meta_tables():
            if publication.table(table) is None:
                message = f'table {table} no longer exists, or is no longer in publication "{publication.name}"'
                hint = f"Drop the source with `penstock drop {self._config.source}` and capture it again."
                raise DefiniteError(message, hint)

    def _error(self, table: CapturedTable, problem: _Problem) -> TableError:
        hint = f"Fix the cause, then resnapshot: ALTER SOURCES {self._config.source} RETRY TABLE {table.name};"
        message = f"capture of {table.name} stopped: {problem.why}"
        return problem.kind(str(table.name), self._proven[table.name] + 1, message, hint)


def _next_facts(before: Facts, now: Facts, proven: Sequence[CapturedTable], durable: Lsn) -> Facts:
    """Return the facts for the next check: the current ones of proven tables, the previous ones of all others."""
    oids = {table.oid for table in proven}
    tables = {oid: now.tables[oid] if oid in oids else before.tables.get(oid, now.tables[oid]) for oid in now.tables}
    return Facts(publication=now.publication, tables=tables, at=int(durable))


def _not_published(
    table: CapturedTable, facts: TableFacts, publication: Publication, needed: frozenset[str]
) -> str | None:
    """Return why changes of the table are not published; None if they are."""
    if (facts.schema_name, facts.name) != (table.name.schema, table.name.name):
        return f"the table was renamed to {TableName(facts.schema_name, facts.name)} upstream"
    if facts.persistence != "p":
        return "the table is unlogged upstream, so its changes are not in the WAL"
    published = publication.table(table.name)
    if published is None:
        return f'the table is no longer in publication "{publication.name}", so its changes are not sent'
    if published.row_filter != table.row_filter:
        return f'its row filter in publication "{publication.name}" differs from that of the snapshot'
    missing = needed - publication.operations
    if missing:
        return f'publication "{publication.name}" no longer publishes {" or ".join(sorted(missing))}'
    return None


def _published_differently(before: TableFacts, now: TableFacts, publication: Publication) -> str | None:
    """Return why changes may be missing if the table was published differently since the last check."""
    if set(before.members) - set(now.members):
        return (
            f'the table was removed from publication "{publication.name}" and added again,'
            " or is published differently: changes may be missing"
        )
    return None


def _changed_partitions(before: TableFacts, now: TableFacts) -> str | None:
    """Return why rows differ if a partition was attached, detached or dropped: the stream does not contain its rows."""
    if any(now.partitions.get(oid) != version for oid, version in before.partitions.items()):
        return "a partition was detached or dropped upstream, with its rows"
    if now.partitions.keys() - before.partitions.keys() - now.born:
        return "a table was attached as a partition upstream, with its rows"
    return None


def _numbers(columns: Iterable[CapturedColumn], before: TableFacts) -> dict[str, int]:
    """Return the numbers of columns, by their names downstream.

    Columns that an earlier version of Penstock described have the number that their name had in the check before.
    """
    known = {name: column.number for name, column in before.columns.items()} | before.dropped
    numbers = ((column.name, column.number or known.get(column.name, 0)) for column in columns)
    return {name: number for name, number in numbers if number}


def _exists(column: CapturedColumn, numbers: Mapping[str, int], now: TableFacts) -> bool:
    """Return whether a column exists, under any name; by its name, if its number is unknown."""
    number = numbers.get(column.name)
    return column.name in now.columns if number is None else number in now.names()


def _stayed(numbers: Mapping[str, int], now: TableFacts) -> set[str]:
    """Return which of these columns exist, under any name."""
    names = now.names()
    return {name for name, number in numbers.items() if number in names}


def _dropped(numbers: Mapping[str, int], before: TableFacts, now: TableFacts) -> dict[str, int]:
    """Return which of these columns do not exist any more, under any name."""
    names = now.names()
    return {**before.dropped, **{name: number for name, number in numbers.items() if number not in names}}


def _altered(numbers: Mapping[str, int], before: TableFacts, now: TableFacts) -> list[str]:
    """Return which of these columns were altered."""
    old, new = ({column.number: column for column in facts.columns.values()} for facts in (before, now))
    # A rewrite that moves a missing value from the catalog into the rows also updates the catalog row of the column.
    return [
        name
        for name, number in numbers.items()
        if number in old
        and number in new
        and old[number].version != new[number].version
        and old[number].filled == new[number].filled
    ]


def _has_older_row(connection: psycopg.Connection[Any], oid: int, horizon: int) -> bool:
    """Return whether a table has a row older than a transaction; False if the role cannot read the table."""
    named = connection.execute(_QUOTED, (oid,)).fetchone()
    if named is None:
        return False
    older = f"age(xmin) > age('{horizon % 2**32}'::xid)"
    try:
        found = connection.execute(f"SELECT 1 FROM ONLY {named[0]} WHERE ctid < '({_PAGES},0)' AND {older} LIMIT 1")
        return found.fetchone() is not None
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False
