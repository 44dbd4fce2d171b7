"""The publication: which tables, rows and columns the stream carries; and the contract it is held to.

::

    read_publication ─▶ Publication, a value ─▶ check_publication(…, rules, ownership) ─▶ findings
    managed: create_publication with the source, drop_publication with it; repair_publication to exactly the tables
    user:    checked only, never changed

Under the ``open`` rules a publication may be broad, filter rows, list columns and speak for partitioned tables; the
first copy then reads the same rows and columns. Under the ``strict`` rules it has exactly the captured tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.sources.findings import Finding, error, info, warning
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.names import quoted, quoted_table
from penstock.sources.postgres.options import Ownership, Rules

__all__ = [
    "Publication",
    "PublishedTable",
    "check_publication",
    "create_publication",
    "create_statement",
    "drop_publication",
    "find_publication",
    "read_publication",
    "repair_publication",
]

_OPERATIONS = ("insert", "update", "delete", "truncate")
_LOST = {
    "insert": "new rows would never arrive",
    "update": "changed rows would silently keep their old values here",
    "delete": "deleted rows would silently stay here",
}
_PUBLICATION = """
SELECT pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE'), puballtables, pubinsert, pubupdate, pubdelete,
       pubtruncate, pubviaroot, {generated} FROM pg_publication WHERE pubname = %s
"""
_SCHEMAS = """
SELECT n.nspname FROM pg_publication_namespace p JOIN pg_namespace n ON n.oid = p.pnnspid
 WHERE p.pnpubid = (SELECT oid FROM pg_publication WHERE pubname = %s) ORDER BY 1
"""
_MEMBERS = """
SELECT n.nspname, c.relname FROM pg_publication_rel r
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.prpubid = (SELECT oid FROM pg_publication WHERE pubname = %s) ORDER BY 1, 2
"""
_TABLES_14 = """
SELECT schemaname, tablename, NULL::text[], NULL::text, false
  FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2
"""
_TABLES = """
SELECT t.schemaname, t.tablename,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attname = ANY(t.attnames) AND (a.attgenerated = '' OR {generated})),
       t.rowfilter,
       EXISTS (SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                WHERE p.pubname = t.pubname AND r.prrelid = c.oid AND r.prattrs IS NOT NULL)
  FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %s ORDER BY 1, 2
"""


@dataclass(frozen=True)
class PublishedTable:
    """A table as it is published; `columns` are None where the server does not say (14): all that are not generated."""

    name: TableName
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None
    column_list: bool = False


@dataclass(frozen=True)
class Publication:
    """A publication as Postgres shows it; `members` are named in it, `tables` are all that it publishes in effect."""

    name: str
    owner: str
    owned: bool
    all_tables: bool
    operations: frozenset[str]
    via_root: bool
    generated: bool
    schemas: tuple[str, ...] = ()
    members: tuple[TableName, ...] = ()
    tables: tuple[PublishedTable, ...] = ()

    def table(self, name: TableName) -> PublishedTable | None:
        """Look a published table up."""
        return next((table for table in self.tables if table.name == name), None)


def find_publication(connection: psycopg.Connection[Any], name: str) -> bool:
    """Say whether a publication of this name exists in the database."""
    return connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is not None


def read_publication(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    """Look a publication up, with all that it publishes."""
    version = connection.info.server_version
    generated = "pubgencols = 's'" if version >= 180000 else "false"
    row = connection.execute(_PUBLICATION.format(generated=generated), (name,)).fetchone()
    if row is None:
        return None
    owner, owned, all_tables, *published, via_root, generated_too = row
    operations = frozenset(name for name, there in zip(_OPERATIONS, published, strict=True) if there)
    schemas = connection.execute(_SCHEMAS, (name,)).fetchall() if version >= 150000 else []
    return Publication(
        *(name, owner, owned, all_tables, operations, via_root, generated_too),
        schemas=tuple(schema for (schema,) in schemas),
        members=tuple(TableName(*member) for member in connection.execute(_MEMBERS, (name,))),
        tables=_read_tables(connection, name, version),
    )


def _read_tables(connection: psycopg.Connection[Any], name: str, version: int) -> tuple[PublishedTable, ...]:
    query = _TABLES.format(generated=str(version >= 180000).lower()) if version >= 150000 else _TABLES_14
    rows = connection.execute(query, (name,)).fetchall()
    return tuple(
        PublishedTable(TableName(schema, table), None if columns is None else tuple(columns), row_filter, listed)
        for schema, table, columns, row_filter, listed in rows
    )


# -- the contract ----------------------------------------------------------------------------------------------------


def check_publication(
    publication: Publication, tables: Sequence[TableName], rules: Rules, ownership: Ownership
) -> list[Finding]:
    """Hold a publication to the rules, for these tables."""
    found = _check_operations(publication, rules)
    if rules is Rules.STRICT:
        found += _check_strict(publication, tables)
    missing = [table for table in tables if publication.table(table) is None]
    found += [_missing(publication, table, ownership) for table in missing]
    return found + (_tell_breadth(publication, tables) if rules is Rules.OPEN else [])


def _check_operations(publication: Publication, rules: Rules) -> list[Finding]:
    about, name = f"publication {publication.name}", quoted(publication.name)
    wanted = ", ".join(_OPERATIONS if rules is Rules.OPEN else _OPERATIONS[:3])
    mend = [f"ALTER PUBLICATION {name} SET (publish = '{wanted}');"]
    found = [
        error(about, f"it does not publish {operation}: {lost}", sql=mend)
        for operation, lost in _LOST.items()
        if operation not in publication.operations
    ]
    truncate = "truncate" in publication.operations
    if rules is Rules.OPEN and not truncate:
        found.append(warning(about, "it does not publish truncate: rows of an emptied table would stay here", sql=mend))
    if rules is Rules.STRICT and not truncate:
        why = "under the strict rules TRUNCATE is not published: rows of an emptied table stay here"
        found.append(info(about, why, "Do not TRUNCATE captured tables, or use the open rules."))
    if rules is Rules.STRICT and truncate:
        found.append(error(about, "it publishes truncate, which the strict rules do not allow", sql=mend))
    return found


def _check_strict(publication: Publication, tables: Sequence[TableName]) -> list[Finding]:
    """The strict rules: an explicit set, nothing filtered. A broad publication is refused, never changed."""
    about, name = f"publication {publication.name}", quoted(publication.name)
    broad = "FOR ALL TABLES" if publication.all_tables else "FOR TABLES IN SCHEMA" if publication.schemas else ""
    if broad:
        listed = ", ".join(quoted_table(table) for table in tables) or "…"
        remedy = f"Make another one: CREATE PUBLICATION … FOR TABLE {listed}; or use the open rules."
        return [error(about, f"it is {broad}; the strict rules want exactly the captured tables", remedy)]
    found = []
    if publication.via_root:
        mend = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = false);"
        found.append(error(about, "it publishes partitions as their root, against the strict rules", sql=[mend]))
    for member in (member for member in publication.members if member not in tables):
        why = f"it publishes {member}, which is not captured as such, against the strict rules"
        found.append(error(about, why, sql=[f"ALTER PUBLICATION {name} DROP TABLE {quoted_table(member)};"]))
    for table in publication.tables:
        target = quoted_table(table.name)
        if table.row_filter is not None or table.column_list:
            what = "a row filter" if table.row_filter is not None else "a column list"
            again = [f"ALTER PUBLICATION {name} {verb} TABLE {target};" for verb in ("DROP", "ADD")]
            found.append(error(about, f"it has {what} on {table.name}, against the strict rules", sql=again))
    return found


def _missing(publication: Publication, table: TableName, ownership: Ownership) -> Finding:
    mend = f"ALTER PUBLICATION {quoted(publication.name)} ADD TABLE {quoted_table(table)};"
    why = f"it is not in the publication {publication.name}, so its changes are not sent"
    if table in publication.members and not publication.via_root:
        why = f"the publication {publication.name} publishes its partitions, not the partitioned table itself"
        mend = f"ALTER PUBLICATION {quoted(publication.name)} SET (publish_via_partition_root = true);"
        return error(str(table), why, "Or name the partitions instead.", [mend])
    if ownership is Ownership.MANAGED:  # what happened while it was out is lost: adding it again would hide that
        return error(str(table), why, "Drop the source and capture it again.")
    return error(str(table), why, sql=[mend])


def _tell_breadth(publication: Publication, tables: Sequence[TableName]) -> list[Finding]:
    about = f"publication {publication.name}"
    others = [str(table.name) for table in publication.tables if table.name not in tables]
    found = []
    if others:
        found.append(
            info(about, f"it also publishes what is not captured: {', '.join(others[:5])}{' …' * (len(others) > 5)}")
        )
    for table in publication.tables:
        if table.name in tables and table.row_filter is not None:
            found.append(info(str(table.name), f"only rows with {table.row_filter} are published, and copied"))
        if table.name in tables and table.column_list and table.columns is not None:
            found.append(info(str(table.name), f"only these columns are published: {', '.join(table.columns)}"))
    return found


# -- ours ------------------------------------------------------------------------------------------------------------


def create_publication(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[CapturedTable],
    rules: Rules = Rules.OPEN,
    meta: Sequence[TableName] = (),
) -> None:
    """Publish exactly these tables, and those in which we mark windows and beat."""
    connection.execute(create_statement(name, tables, rules, meta))


def create_statement(
    name: str, tables: Sequence[CapturedTable], rules: Rules = Rules.OPEN, meta: Sequence[TableName] = ()
) -> sql.Composed:
    """Return the statement that makes the publication."""
    statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})")
    return statement.format(sql.Identifier(name), _members(tables, meta), _parameters(tables, rules))


def repair_publication(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[CapturedTable],
    rules: Rules = Rules.OPEN,
    meta: Sequence[TableName] = (),
) -> None:
    """Make our publication publish exactly these tables again; a broad one is not ours, and is never changed.

    Nobody gets back what was not published in between: only for a source whose tables are then copied.
    """
    found = read_publication(connection, name)
    if found is None:
        create_publication(connection, name, tables, rules, meta)
        return
    if found.all_tables or found.schemas:
        message = f"the publication {name} is FOR ALL TABLES or for whole schemas: Penstock did not make it so"
        raise DefiniteError(message, f"Drop it if nobody uses it: DROP PUBLICATION {quoted(name)};")
    publication = sql.Identifier(name)
    with connection.transaction():
        parameters = sql.SQL("ALTER PUBLICATION {} SET ({})").format(publication, _parameters(tables, rules))
        members = sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(publication, _members(tables, meta))
        # A root that lists columns must be published as such first; what is left as a leaf, taken out first.
        rooted = any(table.partitioned for table in tables)
        for statement in (parameters, members) if rooted else (members, parameters):
            connection.execute(statement)


def drop_publication(connection: psycopg.Connection[Any], name: str) -> bool:
    """Remove a publication if it is there; say whether it was."""
    there = find_publication(connection, name)
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return there


def _members(tables: Sequence[CapturedTable], meta: Sequence[TableName]) -> sql.Composed:
    own = [sql.SQL("ONLY {}").format(sql.Identifier(table.schema, table.name)) for table in meta]
    return sql.SQL(", ").join([*(_member(table) for table in tables), *own])


def _member(table: CapturedTable) -> sql.Composed:
    """Name a table for the publication: without those that inherit from it, but with its partitions."""
    name = sql.Identifier(table.name.schema, table.name.name)
    member = sql.SQL("{}" if table.partitioned else "ONLY {}").format(name)
    if not table.column_list:
        return member
    return member + sql.SQL(" ({})").format(sql.SQL(", ").join(sql.Identifier(c.name) for c in table.columns))


def _parameters(tables: Sequence[CapturedTable], rules: Rules) -> sql.Composable:
    operations = ", ".join(_OPERATIONS if rules is Rules.OPEN else _OPERATIONS[:3])
    rooted = any(table.partitioned for table in tables)
    return sql.SQL("publish = {}, publish_via_partition_root = {}").format(sql.Literal(operations), sql.Literal(rooted))
