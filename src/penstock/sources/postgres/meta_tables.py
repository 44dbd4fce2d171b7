"""The tables of ours upstream, where watermarks or heartbeats are updates of a row: schema ``dblog_meta``.

::

    make:     schema, table, row 1, each only if it is not there ─▶ claimed: the row has a token of this source
    restore:  row 1 alone, claimed again
    unmake:   what this source made goes; what others made is let go of, its row empty again

One row belongs to one source, so two sources of a database cannot both mark by table. What is ours to drop is known by
a comment on it, as the catalog is written before anything is made. An administrator may make the tables beforehand, for
a role that may not.
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
from penstock.sources.postgres.signals import Subject
from penstock.sources.postgres.wal import written
from penstock.sources.postgres.watermark import MalformedTokenError, read_token, write_token

__all__ = [
    "META_TABLES",
    "MetaTable",
    "find_meta",
    "make_meta",
    "meta_statements",
    "meta_tables",
    "restore_meta",
    "unmake_meta",
]

META_TABLES = frozenset(subject.table for subject in Subject)

_SCHEMA = "dblog_meta"
_MADE = "Made by Penstock"
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
    """Return the tables that a source with these options needs."""
    needed = {Subject.WATERMARK: watermarks is Watermarks.TABLE, Subject.HEARTBEAT: heartbeat is Heartbeat.TABLE}
    return tuple(subject.table for subject, wanted in needed.items() if wanted)


@dataclass(frozen=True)
class MetaTable:
    """A table of ``dblog_meta`` that is there."""

    fits: bool
    """Whether it has the shape that we make it in."""
    owned: bool
    owner: str
    usable: bool
    """Whether the role may use its schema."""
    writable: bool
    """Whether the role may read and update it."""
    comment: str | None
    token: str | None = None
    """What its row holds; None where there is none, or it may not be read."""

    def user(self) -> str | None:
        """Return the identity of the source whose row it is; None for nobody's, a question mark for a stranger's."""
        if not self.token:
            return None
        try:
            return _claimed_by(self.token)
        except MalformedTokenError:
            return "?"


def find_meta(connection: psycopg.Connection[Any], table: TableName) -> MetaTable | None:
    """Look one of the tables up."""
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


def meta_statements(table: TableName) -> list[str]:
    """Return what an administrator runs to make one of the tables."""
    return [
        f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA};",
        f"CREATE TABLE {table} ({_COLUMNS});",
        f"INSERT INTO {table} VALUES (1, '');",
    ]


def make_meta(connection: psycopg.Connection[Any], tables: Sequence[TableName], identity: str) -> Lsn:
    """Make what is not there, and claim the rows; return a position after that."""
    with connection.transaction():
        for table in tables:
            _make(connection, table, identity)
    return written(connection)


def restore_meta(connection: psycopg.Connection[Any], tables: Sequence[TableName], identity: str) -> Lsn:
    """Claim the one row of each again, whoever wrote to it, and remove all others; return a position after that."""
    with connection.transaction():
        for table in tables:
            found = find_meta(connection, table)
            if found is None or not found.fits:
                message = f"{table} is gone, or not as Penstock made it"
                raise DefiniteError(message, "Drop the source and capture it again.")
            connection.execute(sql.SQL("DELETE FROM {} WHERE id <> 1").format(_named(table)))
            _claim(connection, table, write_token({"source": identity}))
    return written(connection)


def _make(connection: psycopg.Connection[Any], table: TableName, identity: str) -> None:
    found = find_meta(connection, table)
    if found is None:
        if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (_SCHEMA,)).fetchone():
            connection.execute(f"CREATE SCHEMA {_SCHEMA}; COMMENT ON SCHEMA {_SCHEMA} IS '{_MADE}'")
        connection.execute(f"CREATE TABLE {table} ({_COLUMNS}); COMMENT ON TABLE {table} IS '{_comment(identity)}'")
    elif not found.fits or found.user() not in (None, identity):
        message = f"{table} is not ours: it has other columns, or another source marks its windows in it"
        raise DefiniteError(message, "Use logical messages instead, or drop the other source first.")
    _claim(connection, table, write_token({"source": identity}))


def _claim(connection: psycopg.Connection[Any], table: TableName, token: str) -> None:
    """Put a token into the one row. Without the right to insert, the row has to be there."""
    update = sql.SQL("UPDATE {table} SET token = {token} WHERE id = 1")
    values = {"table": _named(table), "token": sql.Literal(token)}
    if connection.execute(update.format(**values)).rowcount == 0:
        connection.execute(sql.SQL(_CLAIM).format(**values))


def unmake_meta(connection: psycopg.Connection[Any], tables: Sequence[TableName], identity: str) -> list[str]:
    """Drop what this source made, let go of what it only used, and leave alone what is another's; name what went."""
    removed = []
    with connection.transaction():
        for table in tables:
            found = find_meta(connection, table)
            if found is not None and found.comment == _comment(identity):
                connection.execute(f"DROP TABLE {table}")
                removed.append(f"table {table}")
            elif found is not None and found.user() == identity:
                _claim(connection, table, "")
        if removed and _made_and_empty(connection):
            connection.execute(f"DROP SCHEMA {_SCHEMA}")
            removed.append(f"schema {_SCHEMA}")
    return removed


def _made_and_empty(connection: psycopg.Connection[Any]) -> bool:
    query = """
    SELECT 1 FROM pg_namespace n WHERE nspname = %s AND obj_description(n.oid, 'pg_namespace') = %s
       AND pg_has_role(nspowner, 'USAGE') AND NOT EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = n.oid)
       AND NOT EXISTS (SELECT 1 FROM pg_proc WHERE pronamespace = n.oid)
    """
    return connection.execute(query, (_SCHEMA, _MADE)).fetchone() is not None


def _comment(identity: str) -> str:
    return f"{_MADE}, for source {identity}"


def _claimed_by(token: str) -> str:
    """Return the identity in any token of ours: of a claim, a watermark or a heartbeat."""
    for names in (("source",), ("source", "window", "number", "mark"), ("source", "beat")):
        try:
            return str(read_token(token, *names)[0])
        except MalformedTokenError:
            continue
    raise MalformedTokenError


def _named(table: TableName) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)
