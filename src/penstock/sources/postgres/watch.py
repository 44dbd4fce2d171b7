"""Is everything still sent, and are the rows still those that were sent? The stream does not say.

A table that is taken out of the publication, dropped, or filtered otherwise just sends no more (or other) changes; rows
that come or go with a partition, or that an ``ALTER TABLE`` rewrites, send none. So the catalogs are looked at: at each
connect, every few seconds, and at once when the stream describes a table again. They are held against what was found
at the last look, which is in the instance config: *facts*, which move with every change, also with one that was undone
while nobody looked (see `penstock.sources.postgres.facts`). The error stands at the last position at which all was
well, as nobody can tell what was missed after it.

**A table in another file.** ``VACUUM FULL`` and ``CLUSTER`` rewrite a table and change no row; ``ALTER TABLE`` may
change all of them. What tells these apart::

    a column was altered, too            → its values may be others: the table ends
    a row has an older xmin than the     → harmless: VACUUM FULL and CLUSTER keep it, ALTER TABLE writes every row anew
      oldest transaction of the last look
    TRUNCATE came in the stream          → harmless: the stream said it. It may be on its way, so the verdict waits
                                           until the log has reached the end of the WAL at the look
    none of these                        → it cannot be proven that no row was changed: the table ends
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from penstock.errors import DefiniteError, TableError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.facts import Facts, TableFacts, read_facts
from penstock.sources.postgres.options import Ownership, Rules
from penstock.sources.postgres.publication import OPERATIONS, Publication, read_publication
from penstock.sources.postgres.wal import written

__all__ = ["PublicationWatch"]

_SECONDS = 2.0
_NEEDED = frozenset({"insert", "update", "delete"})
"""Of a publication of the user's under the open rules; any other one has TRUNCATE, too, from the start."""
_PAGES = 256
"""How much of a table is searched for an older row."""
_QUOTED = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""


class PublicationWatch:
    """Looks now and then whether all changes of a source are sent."""

    def __init__(self, config: PostgresInstanceConfig, proven: Lsn, truncated: Iterable[TableName] = ()) -> None:
        """Begin with the facts of the config; `truncated` are tables of which the log tells a TRUNCATE since."""
        self._config = config
        self._proven = dict.fromkeys((table.name for table in config.tables), proven)
        """Up to where all changes of a table were sent; without tables that are in trouble."""
        self._truncated = set(truncated)
        self._suspected: dict[TableName, Lsn] = {}
        """Tables in another file for no reason that is known, and the end of the WAL when that was noticed."""
        self._next = 0.0
        self._columns = {table.name: [column.name for column in table.columns] for table in config.tables}
        self.facts = config.facts

    def due(self) -> bool:
        """Say whether it is time to look again."""
        return time.monotonic() >= self._next

    def hurry(self) -> None:
        """Look again as soon as possible."""
        self._next = 0.0

    def know_columns(self, tables: Iterable[CapturedTable]) -> None:
        """Take note of the columns that tables have by now: some may have been added."""
        self._columns.update({table.name: [column.name for column in table.columns] for table in tables})

    def saw_truncate(self, tables: Iterable[TableName]) -> None:
        """Take note of a TRUNCATE in the stream: a table in a new file is explained by it."""
        self._truncated.update(tables)

    def look(self, connection: psycopg.Connection[Any], durable: Lsn) -> list[TableError]:
        """Return an error for each table of which changes may be missing, once.

        Where there is none, `durable` is proven: what Postgres sent up to there was committed before this look.
        """
        self._next = time.monotonic() + _SECONDS
        now = read_facts(connection, self._config.publication, [table.oid for table in self._config.tables])
        publication = read_publication(connection, self._config.publication)
        before = self.facts or now
        if publication is None or now.publication is None:
            how = "is gone"
            raise self._lost_publication(how)
        if before.publication is not None and before.publication[0] != now.publication[0]:
            how = "was dropped and created again"
            raise self._lost_publication(how)
        self._require_marks(publication)
        tables = [table for table in self._config.tables if table.name in self._proven]
        found = [(table, self._trouble(connection, table, publication, before, now, durable)) for table in tables]
        errors = [self._error(table, why) for table, why in found if why is not None]
        well = [table for table, why in found if why is None]
        sure = [table for table in well if table.name not in self._suspected]
        self._proven = {
            table.name: max(self._proven[table.name], durable if table in sure else Lsn.ZERO) for table in well
        }
        self.facts = _moved_on(before, now, sure, durable)
        return errors

    def _trouble(
        self,
        connection: psycopg.Connection[Any],
        table: CapturedTable,
        publication: Publication,
        before: Facts,
        now: Facts,
        durable: Lsn,
    ) -> str | None:
        """Say why changes of a table may be missing."""
        facts, known = now.tables.get(table.oid), before.tables.get(table.oid)
        if facts is None:
            return "it was dropped upstream"
        why = _not_sent(table, facts, publication, self._needed())
        if why is not None or known is None:
            return why
        if before.publication != now.publication:
            return (
                f"the publication {publication.name} was altered upstream, and that it published all changes meanwhile"
                " cannot be proven"
            )
        why = _sent_otherwise(known, facts, publication) or _other_partitions(known, facts)
        return why or self._rewritten(connection, table, known, facts, durable)

    def _rewritten(
        self,
        connection: psycopg.Connection[Any],
        table: CapturedTable,
        before: TableFacts,
        now: TableFacts,
        durable: Lsn,
    ) -> str | None:
        """Say whether values may have been changed without a word; see the module's docstring."""
        gone = [name for name in self._columns[table.name] if name not in now.columns]
        if gone:
            return f"its columns changed upstream (dropped or renamed: {', '.join(gone)})"
        again, altered = _other_columns(self._columns[table.name], before, now)
        if again:
            return f"columns were dropped upstream and added again: {', '.join(again)}"
        changed = [oid for oid, file in now.files.items() if file and before.files.get(oid, file) != file]
        if changed and altered:
            return f"it was rewritten upstream, and columns were altered: {', '.join(altered)}"
        if (
            not changed
            or table.name in self._truncated
            or all(_has_older_row(connection, oid, before.horizon) for oid in changed)
        ):
            self._suspected.pop(table.name, None)
            self._truncated.discard(table.name)
            return None
        if durable < self._suspected.setdefault(table.name, written(connection)):
            return None
        return (
            "it was rewritten upstream (it lies in another file, and all of its rows are new there), and that no row"
            " was changed by that cannot be proven"
        )

    def _needed(self) -> frozenset[str]:
        users = self._config.publication_ownership is Ownership.USER and self._config.rules is Rules.OPEN
        return _NEEDED if users else frozenset(OPERATIONS)

    def _lost_publication(self, how: str) -> DefiniteError:
        since = min(self._proven.values(), default=Lsn.ZERO)
        message = f"the publication {self._config.publication} {how}: changes since {since} may be lost"
        return DefiniteError(
            message, f"Drop the source with `penstock drop {self._config.source}` and capture it again."
        )

    def _require_marks(self, publication: Publication) -> None:
        """Without its watermarks and heartbeats in the stream, nobody would notice who writes there."""
        for table in self._config.meta_tables():
            if publication.table(table) is None:
                message = f"{table} is gone, or not in the publication {publication.name} any more"
                hint = f"Drop the source with `penstock drop {self._config.source}` and capture it again."
                raise DefiniteError(message, hint)

    def _error(self, table: CapturedTable, why: str) -> TableError:
        hint = f"Mend that, then capture the table anew: ALTER SOURCES {self._config.source} RETRY TABLE {table.name};"
        return TableError(
            str(table.name), self._proven[table.name] + 1, f"capture of {table.name} stopped: {why}", hint
        )


def _moved_on(before: Facts, now: Facts, sure: Sequence[CapturedTable], durable: Lsn) -> Facts:
    """Return the facts for the next look: as they are now, but of tables that have ended or are suspected."""
    oids = {table.oid for table in sure}
    tables = {oid: now.tables[oid] if oid in oids else before.tables.get(oid, now.tables[oid]) for oid in now.tables}
    return Facts(publication=now.publication, tables=tables, at=int(durable))


def _not_sent(table: CapturedTable, facts: TableFacts, publication: Publication, needed: frozenset[str]) -> str | None:
    """Say what is not as it has to be."""
    if (facts.schema_name, facts.name) != (table.name.schema, table.name.name):
        return f"it was renamed to {TableName(facts.schema_name, facts.name)} upstream"
    if facts.persistence != "p":
        return "it is unlogged upstream, so its changes are not in the WAL"
    published = publication.table(table.name)
    if published is None:
        return f"it is not in the publication {publication.name} any more, so its changes are not sent"
    if published.row_filter != table.row_filter:
        return f"its row filter in the publication {publication.name} changed, so other rows are sent than were copied"
    missing = needed - publication.operations
    if missing:
        return f"the publication {publication.name} does not publish {' or '.join(sorted(missing))} any more"
    return None


def _sent_otherwise(before: TableFacts, now: TableFacts, publication: Publication) -> str | None:
    """Say whether it was published in another way for a while."""
    if set(before.members) - set(now.members):
        return (
            f"it was taken out of the publication {publication.name} and put back, or is published otherwise there:"
            " changes may be missing"
        )
    return None


def _other_partitions(before: TableFacts, now: TableFacts) -> str | None:
    """Say whether rows came or went with a partition: nothing of that is in the stream."""
    if any(now.partitions.get(oid) != version for oid, version in before.partitions.items()):
        return "a partition was detached or dropped upstream, and its rows with it"
    if now.partitions.keys() - before.partitions.keys() - now.born:
        return "a table was attached as a partition upstream, and its rows with it"
    return None


def _other_columns(columns: Iterable[str], before: TableFacts, now: TableFacts) -> tuple[list[str], list[str]]:
    """Return which of these columns were dropped and added again, and which were altered."""
    found = [(name, before.columns[name], now.columns[name]) for name in columns if name in before.columns]
    again = [name for name, then, by_now in found if then.number != by_now.number]
    # Where a rewrite has ended that older rows were filled in by the catalog, it has written that down there.
    altered = [name for name, then, by_now in found if then.version != by_now.version and then.filled == by_now.filled]
    return again, altered


def _has_older_row(connection: psycopg.Connection[Any], oid: int, horizon: int) -> bool:
    """Look for a row that was there before a transaction; False also where we may not look."""
    named = connection.execute(_QUOTED, (oid,)).fetchone()
    if named is None:
        return False
    older = f"age(xmin) > age('{horizon % 2**32}'::xid)"
    try:
        found = connection.execute(f"SELECT 1 FROM ONLY {named[0]} WHERE ctid < '({_PAGES},0)' AND {older} LIMIT 1")
        return found.fetchone() is not None
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False
