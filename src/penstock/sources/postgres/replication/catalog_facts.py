"""Catalog facts: versions of the catalog rows that describe what is captured. They change with every DDL statement.

Many events that break the continuity of a table never appear in the stream: a publication that is dropped and created
again, a table that is removed from it for a while, rows that an ``ALTER TABLE`` rewrites. Comparing the current
definitions misses every change that was undone. So each fact is the identity of a catalog row together with its
version: the OID, and the ``xmin`` of the row, which is the transaction that wrote it. A version never recurs.

===================  ==========================================================================================
fact                 what changes it
===================  ==========================================================================================
publication          dropped and created again (OID); any change of its options, even if reverted (xmin)
memberships          ``DROP TABLE`` and ``ADD TABLE``, another row filter or column list, a schema added or removed;
                     for a publication of schemas also ``SET SCHEMA``, even if reverted (``pg_depend``)
columns              dropped and added again (``attnum``); any ``ALTER COLUMN`` (xmin)
files                any rewrite: ``ALTER TABLE``, ``SET UNLOGGED``, ``TRUNCATE``, ``VACUUM FULL``, ``CLUSTER``
partitions           detached, even if attached again (xmin of ``pg_inherits``)
===================  ==========================================================================================

`horizon` is the oldest transaction that was running when the facts were read: a row with an older ``xmin`` existed
before that moment and has not been written since.

One statement reads the facts of all tables, so they are consistent; horizon and publication are read before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from pydantic import BaseModel, ConfigDict

from penstock.fields import with_fields

__all__ = ["ColumnFacts", "Facts", "TableFacts", "read_facts"]

_FACTS = """
WITH RECURSIVE publication AS (
  SELECT p.oid, p.xmin::text::bigint AS version FROM pg_publication p WHERE p.pubname = %(publication)s
), part(root, oid, version) AS (
  SELECT oid, oid, 0::bigint FROM pg_class WHERE oid = ANY(%(tables)s)
  UNION ALL
  SELECT root, i.inhrelid, i.xmin::text::bigint FROM part JOIN pg_inherits i ON i.inhparent = part.oid
    JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relispartition
), above(root, oid, schema) AS (
  SELECT t.oid, a.oid, a.relnamespace FROM pg_class t
    JOIN pg_class a ON a.oid = t.oid OR a.oid IN (SELECT relid FROM pg_partition_ancestors(t.oid))
   WHERE t.oid = ANY(%(tables)s)
), member(root, kind, oid, version) AS (
  SELECT root, 'table', r.oid, r.xmin::text::bigint FROM above JOIN pg_publication_rel r ON r.prrelid = above.oid
   WHERE r.prpubid = (SELECT oid FROM publication)
  {schemas}
)
SELECT t.oid::bigint, n.nspname, t.relname, t.relpersistence::text,
       ARRAY(SELECT ARRAY[m.kind, m.oid::text, m.version::text] FROM member m WHERE m.root = t.oid ORDER BY 1),
       ARRAY(SELECT ARRAY[a.attname::text, a.attnum::text, a.xmin::text, a.atthasmissing::text] FROM pg_attribute a
              WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT ARRAY[p.oid::bigint, c.relfilenode::bigint, p.version] FROM part p JOIN pg_class c USING (oid)
              WHERE p.root = t.oid ORDER BY p.oid),
       ARRAY(SELECT p.oid::bigint FROM part p JOIN pg_type r ON r.typrelid = p.oid
              WHERE p.root = t.oid AND r.xmin::text::bigint = p.version)
  FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace WHERE t.oid = ANY(%(tables)s)
"""
_SCHEMAS = """
  UNION ALL
  SELECT root, 'schema', s.oid, s.xmin::text::bigint FROM above JOIN pg_publication_namespace s ON s.pnnspid = schema
   WHERE s.pnpubid = (SELECT oid FROM publication)
  UNION ALL
  SELECT root, 'in schema', d.refobjid, d.xmin::text::bigint FROM above JOIN pg_depend d ON d.objid = above.oid
   WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_namespace'::regclass
     AND EXISTS (SELECT 1 FROM pg_publication_namespace s
                  WHERE s.pnnspid = schema AND s.pnpubid = (SELECT oid FROM publication))
"""
_SOURCE = """
SELECT p.oid::bigint, p.xmin::text::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint
  FROM (SELECT 1) one LEFT JOIN pg_publication p ON p.pubname = %(publication)s
"""
_SCHEMAS_PUBLISHED_SINCE = 150_000


class ColumnFacts(BaseModel):
    """A column, from ``pg_attribute``."""

    model_config = ConfigDict(frozen=True)

    number: int
    version: int
    filled: bool
    """Whether the value of rows older than the column exists in the catalog only (``atthasmissing``), until a rewrite.
    """


class TableFacts(BaseModel):
    """A table, from the catalogs."""

    model_config = ConfigDict(frozen=True)

    schema_name: str
    name: str
    persistence: str
    """``pg_class.relpersistence``: p(ermanent), u(nlogged)."""
    members: tuple[tuple[str, int, int], ...]
    """The catalog rows through which it is published: kind, OID, version."""
    columns: dict[str, ColumnFacts]
    dropped: dict[str, int] = {}
    """Captured columns that were dropped, each with its number. Numbers of columns are never used again."""
    files: dict[int, int]
    """The filenode of the table and of each partition, by OID."""
    partitions: dict[int, int]
    """The version of the ``pg_inherits`` row of each partition, by OID; 0 for the table itself."""
    born: frozenset[int] = frozenset()
    """The partitions that were created as partitions, and so were empty then."""
    horizon: int
    """The oldest transaction that was running when the facts were read."""

    def names(self) -> dict[int, str]:
        """Return the names of its columns, by their numbers."""
        return {column.number: name for name, column in self.columns.items()}


class Facts(BaseModel):
    """The catalog facts of a source, at one moment."""

    model_config = ConfigDict(frozen=True)

    publication: tuple[int, int] | None
    """OID and version; None if no publication has that name."""
    tables: dict[int, TableFacts]
    """By OID; without dropped tables."""
    at: int = 0
    """The position at which the change log ended at that moment."""

    def same(self, other: Facts) -> bool:
        """Return whether nothing has changed upstream, apart from the horizon."""
        tables = {oid: (facts, other.tables[oid]) for oid, facts in self.tables.items() if oid in other.tables}
        return (
            self.publication == other.publication
            and self.tables.keys() == other.tables.keys()
            and all(with_fields(one, horizon=two.horizon) == two for one, two in tables.values())
        )


def read_facts(connection: psycopg.Connection[Any], publication: str, tables: Iterable[int]) -> Facts:
    """Read the facts over any connection, including a replication connection."""
    schemas = _SCHEMAS if connection.info.server_version >= _SCHEMAS_PUBLISHED_SINCE else ""
    parameters: Mapping[str, Any] = {"publication": publication, "tables": list(tables)}
    # The horizon first: writes that follow it have a later transaction id, whatever the second statement sees.
    oid, version, horizon = connection.execute(_SOURCE, parameters).fetchall()[0]
    rows = connection.execute(_FACTS.format(schemas=schemas), parameters).fetchall()
    return Facts(
        publication=None if oid is None else (oid, version),
        tables={row[0]: _table_facts(horizon, *row[1:]) for row in rows},
    )


def _table_facts(
    horizon: int,
    schema: str,
    name: str,
    persistence: str,
    members: list[list[str]],
    columns: list[list[str]],
    parts: list[list[int]],
    born: list[int],
) -> TableFacts:
    return TableFacts(
        schema_name=schema,
        name=name,
        persistence=persistence,
        members=tuple((kind, int(oid), int(version)) for kind, oid, version in members),
        columns={
            column: ColumnFacts(number=int(number), version=int(version), filled=filled == "true")
            for column, number, version, filled in columns
        },
        files={oid: file for oid, file, _ in parts},
        partitions={oid: version for oid, _, version in parts},
        born=frozenset(born),
        horizon=horizon,
    )
