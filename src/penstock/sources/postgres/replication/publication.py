"""The publication: it determines which tables, rows and columns the stream contains.

::

    read_publication ─▶ Publication, a value ─▶ check_publication(…, rules, ownership) ─▶ findings
    managed: created, altered and dropped with the source
    user:    checked only, never altered

Under the ``open`` rules a publication may cover all tables or schemas, filter rows, list columns and publish partitions
via their root; the initial snapshot then reads the same rows and columns. Under the ``strict`` rules it has exactly the
captured tables, and must publish TRUNCATE, which stops a table there: otherwise truncated rows would silently stay in
the captured table.

A managed publication::

    create:  captured tables and meta tables; a comment, set in the same transaction, identifies the source
    alter:   publish new and resnapshotted tables, one statement each; remove dropped tables
    drop:    only if the comment identifies this source

Captured tables are identified by OID. So a table that was dropped, renamed or moved upstream does not block an
alteration, and tables that are neither new nor dropped are left unchanged: a table that another session removed from
the publication is not silently added again, as the changes in between are lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.sources.findings import Finding, error, info, warning
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.options import Ownership, Rules
from penstock.sources.postgres.quoting import quoted, quoted_table

__all__ = [
    "OPERATIONS",
    "Publication",
    "PublishedTable",
    "alter_publication",
    "check_publication",
    "create_publication",
    "create_statement",
    "drop_publication",
    "publication_comment",
    "read_publication",
]

OPERATIONS = ("insert", "update", "delete", "truncate")
"""All operations that a publication can publish."""
_LOST = {
    "insert": "new rows would not be captured",
    "update": "updated rows would keep their old values downstream",
    "delete": "deleted rows would remain downstream",
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
    """A published table; `columns` is None on Postgres 14, which publishes all columns that are not generated."""

    name: TableName
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None
    column_list: bool = False


@dataclass(frozen=True)
class Publication:
    """A publication; `members` are the tables named in it, `tables` all that it publishes in effect."""

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
        """Return a published table; None if it is not published."""
        return next((table for table in self.tables if table.name == name), None)


def read_publication(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    """Return a publication with all that it publishes; None if it does not exist."""
    version = connection.info.server_version
    generated = "pubgencols = 's'" if version >= 180000 else "false"
    row = connection.execute(_PUBLICATION.format(generated=generated), (name,)).fetchone()
    if row is None:
        return None
    owner, owned, all_tables, *published, via_root, generated_too = row
    operations = frozenset(name for name, there in zip(OPERATIONS, published, strict=True) if there)
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


# -- checks ----------------------------------------------------------------------------------------------------------


def check_publication(
    publication: Publication, tables: Sequence[TableName], rules: Rules, ownership: Ownership
) -> list[Finding]:
    """Check a publication of these tables against the rules."""
    found = _check_operations(publication, rules)
    if rules is Rules.STRICT:
        found += _check_strict(publication, tables)
    missing = [table for table in tables if publication.table(table) is None]
    found += [_missing(publication, table, ownership) for table in missing]
    return found + (_report_extent(publication, tables) if rules is Rules.OPEN else [])


def _check_operations(publication: Publication, rules: Rules) -> list[Finding]:
    about, name = f"publication {publication.name}", quoted(publication.name)
    fix = [f"ALTER PUBLICATION {name} SET (publish = '{', '.join(OPERATIONS)}');"]
    found = [
        error(about, f"does not publish {operation}: {lost}", sql=fix)
        for operation, lost in _LOST.items()
        if operation not in publication.operations
    ]
    if "truncate" not in publication.operations:
        finding = error if rules is Rules.STRICT else warning
        found.append(finding(about, "does not publish truncate: truncated rows would remain downstream", sql=fix))
    return found


def _check_strict(publication: Publication, tables: Sequence[TableName]) -> list[Finding]:
    """Check the strict rules: exactly the captured tables, no filters. Reject a broader one; never alter it."""
    about, name = f"publication {publication.name}", quoted(publication.name)
    broad = "FOR ALL TABLES" if publication.all_tables else "FOR TABLES IN SCHEMA" if publication.schemas else ""
    if broad:
        listed = ", ".join(quoted_table(table) for table in tables) or "…"
        hint = f"Create another one: CREATE PUBLICATION … FOR TABLE {listed}; or use rules = open."
        return [error(about, f"is {broad}; the strict rules require exactly the captured tables", hint)]
    found = []
    if publication.via_root:
        fix = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = false);"
        found.append(error(about, "has publish_via_partition_root, which violates the strict rules", sql=[fix]))
    for member in (member for member in publication.members if member not in tables):
        why = f"publishes {member}, which is not a captured table; this violates the strict rules"
        found.append(error(about, why, sql=[f"ALTER PUBLICATION {name} DROP TABLE {quoted_table(member)};"]))
    for table in publication.tables:
        target = quoted_table(table.name)
        if table.row_filter is not None or table.column_list:
            what = "a row filter" if table.row_filter is not None else "a column list"
            again = [f"ALTER PUBLICATION {name} {verb} TABLE {target};" for verb in ("DROP", "ADD")]
            found.append(error(about, f"has {what} on {table.name}, which violates the strict rules", sql=again))
    return found


def _missing(publication: Publication, table: TableName, ownership: Ownership) -> Finding:
    fix = f"ALTER PUBLICATION {quoted(publication.name)} ADD TABLE {quoted_table(table)};"
    why = f'not in publication "{publication.name}", so its changes are not sent'
    if table in publication.members and not publication.via_root:
        why = f'publication "{publication.name}" publishes its partitions, not the partitioned table itself'
        fix = f"ALTER PUBLICATION {quoted(publication.name)} SET (publish_via_partition_root = true);"
        return error(str(table), why, "Or name the partitions instead.", [fix])
    if ownership is Ownership.MANAGED:  # the changes since its removal are lost: adding it again would hide that
        return error(str(table), why, f"To resnapshot it, run: ALTER SOURCES … RETRY TABLE {table};")
    return error(str(table), why, sql=[fix])


def _report_extent(publication: Publication, tables: Sequence[TableName]) -> list[Finding]:
    about = f"publication {publication.name}"
    others = [str(table.name) for table in publication.tables if table.name not in tables]
    found = []
    if others:
        found.append(
            info(about, f"also publishes tables not captured: {', '.join(others[:5])}{' …' * (len(others) > 5)}")
        )
    for table in publication.tables:
        if table.name in tables and table.row_filter is not None:
            found.append(info(str(table.name), f"only rows with {table.row_filter} are published and captured"))
        if table.name in tables and table.column_list and table.columns is not None:
            found.append(info(str(table.name), f"only these columns are published: {', '.join(table.columns)}"))
    return found


_MEMBERS_14 = """
SELECT r.prrelid::oid::bigint, n.nspname, c.relname, NULL::text[], false FROM pg_publication_rel r
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.prpubid = (SELECT oid FROM pg_publication WHERE pubname = %s)
"""
_OWN_MEMBERS = """
SELECT r.prrelid::oid::bigint, n.nspname, c.relname,
       (SELECT array_agg(a.attname::text) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum = ANY(r.prattrs::int2[])), r.prqual IS NOT NULL
  FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.prpubid = (SELECT oid FROM pg_publication WHERE pubname = %s)
"""


@dataclass(frozen=True)
class _Member:
    """A member of the publication, under its current name; `columns` is None without a column list."""

    name: TableName
    columns: frozenset[str] | None
    filtered: bool

    def is_as(self, table: CapturedTable) -> bool:
        """Return whether it is published as this captured table requires."""
        wanted = frozenset(column.name for column in table.columns) if table.column_list else None
        return not self.filtered and self.columns == wanted


def create_publication(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[CapturedTable],
    meta: Sequence[TableName] = (),
    comment: str = "",
) -> None:
    """Create a publication of exactly these tables and the meta tables, with a comment that identifies its source."""
    with connection.transaction():
        connection.execute(create_statement(name, tables, meta))
        statement = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(sql.Identifier(name), sql.Literal(comment))
        connection.execute(statement)


def create_statement(name: str, tables: Sequence[CapturedTable], meta: Sequence[TableName] = ()) -> sql.Composed:
    """Return the statement that creates the publication."""
    own = [sql.SQL("ONLY {}").format(_named(table)) for table in meta]
    members = sql.SQL(", ").join([*(_member(table) for table in tables), *own])
    statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})")
    return statement.format(sql.Identifier(name), members, _parameters(tables))


def alter_publication(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[CapturedTable],
    resnapshotted: Collection[TableName],
    meta: Sequence[TableName] = (),
) -> dict[TableName, Finding]:
    """Publish the `resnapshotted` tables (new or captured again), and remove all tables that are not in `tables`.

    The changes before are lost, so these tables are snapshotted afterwards. Return an error for each table that
    Postgres refuses to publish. A publication of all tables or of schemas is not ours, and is never altered.
    """
    found = read_publication(connection, name)
    if found is None:
        message = f'publication "{name}" no longer exists: changes since it was dropped are lost'
        raise DefiniteError(message, "Drop the source and capture it again.")
    if found.all_tables or found.schemas:
        message = f'publication "{name}" is FOR ALL TABLES or FOR TABLES IN SCHEMA: Penstock did not create it'
        raise DefiniteError(message, f"If it is unused, run: DROP PUBLICATION {quoted(name)};")
    refused: dict[TableName, Finding] = {}
    with connection.transaction():
        members = _members(connection, name)
        kept = {table.oid for table in tables}
        for oid, member in members.items():
            if oid not in kept and member.name not in meta:
                _remove_member(connection, name, member)
        if _differs(found, tables):  # before a root with a column list is added, and after one was removed
            setting = sql.SQL("ALTER PUBLICATION {} SET ({})").format(sql.Identifier(name), _parameters(tables))
            connection.execute(setting)
        for table in (table for table in tables if table.name in resnapshotted):
            refused.update(_publish(connection, name, table, members))
    return refused


def publication_comment(connection: psycopg.Connection[Any], name: str) -> str | None:
    """Return the comment on a publication: '' if it has none, None if the publication does not exist."""
    query = "SELECT coalesce(obj_description(oid, 'pg_publication'), '') FROM pg_publication WHERE pubname = %s"
    row = connection.execute(query, (name,)).fetchone()
    return None if row is None else str(row[0])


def drop_publication(connection: psycopg.Connection[Any], name: str) -> bool:
    """Drop a publication if it exists; return whether it existed."""
    existed = publication_comment(connection, name) is not None
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return existed


def _members(connection: psycopg.Connection[Any], name: str) -> dict[int, _Member]:
    query = _OWN_MEMBERS if connection.info.server_version >= 150000 else _MEMBERS_14
    return {
        oid: _Member(TableName(schema, table), None if columns is None else frozenset(columns), filtered)
        for oid, schema, table, columns, filtered in connection.execute(query, (name,))
    }


def _publish(
    connection: psycopg.Connection[Any], name: str, table: CapturedTable, members: Mapping[int, _Member]
) -> Iterator[tuple[TableName, Finding]]:
    """Add a table to the publication as its capture requires; yield an error of this table if Postgres refuses."""
    member = members.get(table.oid)
    if member is not None and member.is_as(table):
        return
    adding = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _member(table))
    try:
        with connection.transaction():
            if member is not None:
                _remove_member(connection, name, member)
            connection.execute(adding)
    except psycopg.Error as refusal:
        if refusal.sqlstate is None or refusal.sqlstate.startswith(("08", "57")):  # an error of the connection
            raise
        why = f"Postgres refused to publish the table: {' '.join(str(refusal).split())}"
        yield table.name, error(str(table.name), why, "Fix the error on the server, then retry the table.")


def _remove_member(connection: psycopg.Connection[Any], name: str, member: _Member) -> None:
    statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(sql.Identifier(name), _named(member.name))
    connection.execute(statement)


def _member(table: CapturedTable) -> sql.Composed:
    """Return the member clause of a table: without inheriting tables (ONLY), but with its partitions."""
    member = sql.SQL("{}" if table.partitioned else "ONLY {}").format(_named(table.name))
    if not table.column_list:
        return member
    return member + sql.SQL(" ({})").format(sql.SQL(", ").join(sql.Identifier(c.name) for c in table.columns))


def _named(table: TableName) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)


def _differs(found: Publication, tables: Sequence[CapturedTable]) -> bool:
    return found.operations != frozenset(OPERATIONS) or found.via_root != _rooted(tables)


def _parameters(tables: Sequence[CapturedTable]) -> sql.Composable:
    """Return the parameters: all operations; TRUNCATE too, as it stops its table under the strict rules."""
    parameters = sql.SQL("publish = {}, publish_via_partition_root = {}")
    return parameters.format(sql.Literal(", ".join(OPERATIONS)), sql.Literal(_rooted(tables)))


def _rooted(tables: Sequence[CapturedTable]) -> bool:
    return any(table.partitioned for table in tables)
