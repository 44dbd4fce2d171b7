"""The upstream tables in schema ``dblog_meta``, for watermarks and heartbeats that are updates of a row.

::

    create:   schema, table and row 1, each only if it does not exist ─▶ claimed: the row has a token of this source
    restore:  delete other rows, and claim row 1 again
    drop:     drop tables that this source created; release others, with an empty token in row 1

One row belongs to one source, so only one source of a database can use a table for its watermarks. A comment on a table
identifies the source that created it and may drop it. An administrator can create the tables in advance, for a role
without the privilege.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.options import Heartbeat, Watermarks
from penstock.sources.postgres.replication.interference import MarkerKind
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.sources.postgres.replication.watermark import MalformedTokenError, read_token, write_token

__all__ = [
    "META_TABLES",
    "MetaTable",
    "create_meta_tables",
    "drop_meta_tables",
    "find_meta_table",
    "meta_table_statements",
    "meta_tables",
    "restore_meta_tables",
]

META_TABLES = frozenset(subject.table for subject in MarkerKind)

_SCHEMA = "dblog_meta"
_CREATED_BY = "Made by Penstock"
_COLUMNS = "id integer PRIMARY KEY CHECK (id = 1), token text NOT NULL"
_SHAPE = (("id", "integer", True), ("token", "text", False))
_FIND = """
SELECT c.relkind = 'r' AND c.relpersistence = 'p' AND c.relreplident IN ('d', 'f'),
       pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
       has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE'),
       (SELECT array_agg(ROW(a.attname, format_type(a.atttypid, a.atttypmod), a.attnum = ANY(i.indkey))::text
                         ORDER BY a.attnum)
          FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       obj_description(c.oid, 'pg_class')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_CLAIM = """
INSERT INTO {table} (id, token) VALUES (1, {token}) ON CONFLICT (id) DO UPDATE SET token = excluded.token
"""


def meta_tables(watermarks: Watermarks, heartbeat: Heartbeat | None) -> tuple[TableName, ...]:
    """Return the meta tables that a source with these options needs."""
    needed = {MarkerKind.WATERMARK: watermarks is Watermarks.TABLE, MarkerKind.HEARTBEAT: heartbeat is Heartbeat.TABLE}
    return tuple(subject.table for subject, wanted in needed.items() if wanted)


@dataclass(frozen=True)
class MetaTable:
    """An existing table of ``dblog_meta``."""

    fits: bool
    """Whether it has the columns, key and persistence that Penstock requires."""
    owned: bool
    owner: str
    usable: bool
    """Whether the role may use its schema."""
    writable: bool
    """Whether the role may read and update it."""
    comment: str | None
    token: str | None = None
    """The token in its row; None if there is no row, or the role cannot read it."""

    def user(self) -> str | None:
        """Return the identity of the source that owns the row; None if it is free, "?" if the token is not ours."""
        if not self.token:
            return None
        try:
            return _claimed_by(self.token)
        except MalformedTokenError:
            return "?"


def find_meta_table(connection: psycopg.Connection[Any], table: TableName) -> MetaTable | None:
    """Return one of the tables; None if it does not exist."""
    row = connection.execute(_FIND, (table.schema, table.name)).fetchone()
    if row is None:
        return None
    plain, owned, owner, usable, writable, columns, comment = row
    shape = [f"({name},{kind},{'t' if key else 'f'})" for name, kind, key in _SHAPE]
    found = MetaTable(bool(plain) and columns == shape, owned, owner, usable, writable, comment)
    if not (found.fits and usable and writable):
        return found
    query = sql.SQL("SELECT token FROM {} WHERE id = 1").format(_named(table))
    (token,) = connection.execute(query).fetchone() or (None,)
    return MetaTable(found.fits, owned, owner, usable, writable, comment, token)


def meta_table_statements(table: TableName) -> list[str]:
    """Return the statements with which an administrator creates one of the tables."""
    return [
        f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA};",
        f"CREATE TABLE {table} ({_COLUMNS});",
        f"INSERT INTO {table} VALUES (1, '');",
    ]


def create_meta_tables(connection: psycopg.Connection[Any], tables: Sequence[TableName], identity: str) -> Lsn:
    """Create missing tables, and claim their rows; return a position after that."""
    with connection.transaction():
        for table in tables:
            _create(connection, table, identity)
    return wal_insert_position(connection)


def restore_meta_tables(connection: psycopg.Connection[Any], tables: Sequence[TableName], identity: str) -> Lsn:
    """Claim row 1 of each table again, and delete all other rows; return a position after that."""
    with connection.transaction():
        for table in tables:
            found = find_meta_table(connection, table)
            if found is None or not found.fits:
                message = f"table {table} no longer exists, or does not have the required columns"
                raise DefiniteError(message, "Drop the source and capture it again.")
            connection.execute(sql.SQL("DELETE FROM {} WHERE id <> 1").format(_named(table)))
            _claim(connection, table, write_token({"source": identity}))
    return wal_insert_position(connection)


def _create(connection: psycopg.Connection[Any], table: TableName, identity: str) -> None:
    found = find_meta_table(connection, table)
    if found is None:
        if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (_SCHEMA,)).fetchone():
            connection.execute(f"CREATE SCHEMA {_SCHEMA}; COMMENT ON SCHEMA {_SCHEMA} IS '{_CREATED_BY}'")
        connection.execute(f"CREATE TABLE {table} ({_COLUMNS}); COMMENT ON TABLE {table} IS '{_comment(identity)}'")
    elif not found.fits or found.user() not in (None, identity):
        message = f"table {table} has other columns than Penstock requires, or another source uses it"
        raise DefiniteError(message, "Use logical messages instead, or drop the other source first.")
    _claim(connection, table, write_token({"source": identity}))


def _claim(connection: psycopg.Connection[Any], table: TableName, token: str) -> None:
    """Write a token into row 1; insert the row only if it does not exist, as the role may lack that privilege."""
    update = sql.SQL("UPDATE {table} SET token = {token} WHERE id = 1")
    values = {"table": _named(table), "token": sql.Literal(token)}
    if connection.execute(update.format(**values)).rowcount == 0:
        connection.execute(sql.SQL(_CLAIM).format(**values))


def drop_meta_tables(connection: psycopg.Connection[Any], tables: Sequence[TableName], identity: str) -> list[str]:
    """Drop tables that this source created, and release the rows of others that it used; return the dropped objects."""
    removed = []
    with connection.transaction():
        for table in tables:
            found = find_meta_table(connection, table)
            if found is not None and found.comment == _comment(identity):
                connection.execute(f"DROP TABLE {table}")
                removed.append(f"table {table}")
            elif found is not None and found.user() == identity:
                _claim(connection, table, "")
        if removed and _is_own_and_empty(connection):
            connection.execute(f"DROP SCHEMA {_SCHEMA}")
            removed.append(f"schema {_SCHEMA}")
    return removed


def _is_own_and_empty(connection: psycopg.Connection[Any]) -> bool:
    query = """
    SELECT 1 FROM pg_namespace n WHERE nspname = %s AND obj_description(n.oid, 'pg_namespace') = %s
       AND pg_has_role(nspowner, 'USAGE') AND NOT EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = n.oid)
       AND NOT EXISTS (SELECT 1 FROM pg_proc WHERE pronamespace = n.oid)
    """
    return connection.execute(query, (_SCHEMA, _CREATED_BY)).fetchone() is not None


def _comment(identity: str) -> str:
    return f"{_CREATED_BY}, for source {identity}"


def _claimed_by(token: str) -> str:
    """Return the identity in a Penstock token: that of a claim, a watermark or a heartbeat."""
    for names in (("source",), ("source", "window", "number", "mark"), ("source", "beat")):
        try:
            return str(read_token(token, *names)[0])
        except MalformedTokenError:
            continue
    raise MalformedTokenError


def _named(table: TableName) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)
