"""What Postgres says of itself: its tables, columns and keys, as capture and preflight need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedColumn, CapturedTable
from penstock.sources.postgres.types import PostgresType, UnsupportedType, find_types

__all__ = ["UpstreamColumn", "UpstreamTable", "find_tables"]

_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
       row_security_active(c.oid), c.relispartition,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'),
       pg_has_role(c.relowner, 'USAGE'), greatest(c.reltuples, 0)::bigint, obj_description(c.oid, 'pg_class'),
       EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.ord)
                   FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(num, ord), pg_attribute a
                  WHERE i.indrelid = c.oid AND i.indisprimary AND k.ord <= i.indnkeyatts
                    AND a.attrelid = c.oid AND a.attnum = k.num), '{}')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
   AND (%(schemas)s::text[] IS NULL OR n.nspname = ANY(%(schemas)s))
 ORDER BY 2, 3
"""
_COLUMNS = """
SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
       col_description(a.attrelid, a.attnum)
  FROM pg_attribute a
 WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""


@dataclass(frozen=True)
class UpstreamColumn:
    """A column of an upstream table."""

    name: str
    type: PostgresType
    type_name: str
    generated: bool
    comment: str | None = None


@dataclass(frozen=True)
class UpstreamTable:
    """An upstream table, with all that decides whether it can be captured."""

    oid: int
    name: TableName
    kind: str
    persistence: str
    replica_identity: str
    row_security: bool
    is_partition: bool
    readable: bool
    owned: bool
    estimated_rows: int
    comment: str | None
    deferrable_key: bool
    key: tuple[str, ...]
    columns: tuple[UpstreamColumn, ...]

    @property
    def streamed(self) -> tuple[UpstreamColumn, ...]:
        """The columns that the stream carries: generated ones are not published."""
        return tuple(column for column in self.columns if not column.generated)

    def captured(self) -> CapturedTable:
        """The table as capture will take it."""
        columns = tuple(CapturedColumn(c.name, c.type, c.name in self.key, comment=c.comment) for c in self.streamed)
        return CapturedTable(
            name=self.name,
            oid=self.oid,
            key=self.key,
            columns=columns,
            comment=self.comment,
            estimated_rows=self.estimated_rows,
        )

    def refused_columns(self) -> list[tuple[str, str]]:
        """Name the columns whose type has no exact form downstream, with the reason."""
        refused = []
        for column, captured in zip(self.streamed, self.captured().columns, strict=True):
            try:
                captured.codec()
            except UnsupportedType as error:
                refused.append((column.name, f"{column.type_name}: {error.reason}"))
        return refused


def find_tables(connection: psycopg.Connection[Any], schemas: Sequence[str] | None = None) -> list[UpstreamTable]:
    """List the tables of this database, of these schemas where given."""
    found = connection.execute(_TABLES, {"schemas": list(schemas) if schemas else None}).fetchall()
    columns: dict[int, list[UpstreamColumn]] = {}
    listed = connection.execute(_COLUMNS, ([row[0] for row in found],)).fetchall()
    kinds = find_types(connection, {(oid, typmod) for _, _, oid, typmod, *_ in listed})
    for table, name, oid, typmod, *rest in listed:
        columns.setdefault(table, []).append(UpstreamColumn(name, kinds[oid, typmod], *rest))
    return [_upstream_table(row, tuple(columns.get(row[0], ()))) for row in found]


def _upstream_table(row: tuple[Any, ...], columns: tuple[UpstreamColumn, ...]) -> UpstreamTable:
    oid, schema, name, *facts, key = row
    arguments: list[Any] = [oid, TableName(schema, name), *facts, tuple(key), columns]
    return UpstreamTable(*arguments)
