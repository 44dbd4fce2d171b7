"""Read relations, columns and keys from the Postgres catalogs, for capture and preflight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.postgres.captured_table import DECLARATION, Declaration
from penstock.sources.postgres.types import PostgresType, find_types

__all__ = ["UpstreamColumn", "UpstreamTable", "find_tables"]

_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
       c.relkind IN ('r', 'p') AND row_security_active(c.oid),
       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid END,
       has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'),
       pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
       greatest(c.reltuples, 0)::bigint, obj_description(c.oid, 'pg_class'),
       pg_relation_filenode(c.oid), c.relnatts,
       EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.ord)
                   FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(num, ord), pg_attribute a
                  WHERE i.indrelid = c.oid
                    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
                    AND k.ord <= i.indnkeyatts AND a.attrelid = c.oid AND a.attnum = k.num), '{}')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_(?!temp_)'
   AND (%(schemas)s::text[] IS NULL OR n.nspname = ANY(%(schemas)s))
 ORDER BY 2, 3
"""
_COLUMNS = f"""
SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, {DECLARATION}, a.attgenerated,
       col_description(a.attrelid, a.attnum), a.attnum
  FROM pg_attribute a
 WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""


@dataclass(frozen=True)
class UpstreamColumn:
    """A column of an upstream table; `generated` is empty, ``s`` (stored) or ``v`` (virtual)."""

    name: str
    type: PostgresType
    declaration: Declaration
    generated: str = ""
    comment: str | None = None
    number: int = 0


@dataclass(frozen=True)
class UpstreamTable:
    """An upstream relation, with the properties that decide whether it can be captured; codes as in ``pg_class``."""

    oid: int
    name: TableName
    kind: str
    persistence: str
    replica_identity: str
    row_security: bool
    root: int | None
    """For a partition, the OID of the topmost partitioned table."""
    readable: bool
    schema_usable: bool
    owned: bool
    owner: str
    estimated_rows: int
    comment: str | None
    filenode: int | None
    width: int
    """The number of columns, including dropped ones."""
    deferrable_key: bool
    key: tuple[str, ...]
    """The columns of the primary key, or of the replica identity index if there is one."""
    columns: tuple[UpstreamColumn, ...]

    @property
    def partitioned(self) -> bool:
        """Whether it is a partitioned table, which has no rows of its own."""
        return self.kind == "p"


def find_tables(connection: psycopg.Connection[Any], schemas: Sequence[str] | None = None) -> list[UpstreamTable]:
    """Return tables, views and foreign tables of this database, or of the given schemas."""
    found = connection.execute(_TABLES, {"schemas": list(schemas) if schemas else None}).fetchall()
    columns = _find_columns(connection, [row[0] for row in found])
    return [_upstream_table(row, tuple(columns.get(row[0], ()))) for row in found]


def _find_columns(connection: psycopg.Connection[Any], tables: Sequence[int]) -> dict[int, list[UpstreamColumn]]:
    """Return the columns of these tables, with their types."""
    columns: dict[int, list[UpstreamColumn]] = {}
    listed = connection.execute(_COLUMNS, (list(tables),)).fetchall()
    kinds = find_types(connection, {(oid, typmod) for _, _, oid, typmod, *_ in listed})
    for table, name, oid, typmod, declaration, *rest in listed:
        column = UpstreamColumn(name, kinds[oid, typmod], Declaration.parse(declaration), *rest)
        columns.setdefault(table, []).append(column)
    return columns


def _upstream_table(row: tuple[Any, ...], columns: tuple[UpstreamColumn, ...]) -> UpstreamTable:
    oid, schema, name, *facts, key = row
    arguments: list[Any] = [oid, TableName(schema, name), *facts, tuple(key), columns]
    return UpstreamTable(*arguments)
