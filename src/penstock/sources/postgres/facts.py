"""What Postgres's catalogs say of what is captured, by marks that move with every change and never move back.

Much that breaks the continuity of a table never comes in the stream: a publication that was dropped and created again,
a table that was taken out of it for a while, rows that an ``ALTER TABLE`` rewrote. Comparing how things *are* misses
all that was undone again. So each fact is the identity of a catalog row together with its version: the OID, and the
``xmin`` of the row, which is the transaction that wrote it.

===================  ==========================================================================================
fact                 what moves it
===================  ==========================================================================================
publication          dropped and created again (OID); its options, whatever they are by now (xmin)
memberships          ``DROP TABLE`` and ``ADD TABLE``, another row filter or column list, a schema that came or went;
                     for a schema's publication also ``SET SCHEMA``, there and back (``pg_depend``)
columns              dropped and added again (``attnum``); any ``ALTER COLUMN`` (xmin)
files                any rewrite: ``ALTER TABLE``, ``SET UNLOGGED``, ``TRUNCATE``, ``VACUUM FULL``, ``CLUSTER``
partitions           detached, also when attached again (xmin of ``pg_inherits``)
===================  ==========================================================================================

`horizon` is the oldest transaction that ran at the look: a row with an older ``xmin`` was there before the look, and
nobody has written it since.

The facts of all tables are read in one statement, and so at one moment; the horizon and the publication before that.
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
    """A column as the catalog has it."""

    model_config = ConfigDict(frozen=True)

    number: int
    version: int
    filled: bool
    """Whether rows that are older than the column have a value that is in the catalog alone; a rewrite ends that."""


class TableFacts(BaseModel):
    """A table as the catalogs have it."""

    model_config = ConfigDict(frozen=True)

    schema_name: str
    name: str
    persistence: str
    """As ``pg_class`` has it: p(ermanent), u(nlogged)."""
    members: tuple[tuple[str, int, int], ...]
    """The rows by which it is published: kind, OID, version."""
    columns: dict[str, ColumnFacts]
    files: dict[int, int]
    """The table and its partitions, by OID, with the number of the file of each."""
    partitions: dict[int, int]
    """The same, with the version of their place among the partitions; 0 for the table itself."""
    born: frozenset[int] = frozenset()
    """Those of them that were created as partitions, and so were empty then."""
    horizon: int
    """The oldest transaction that ran at the look."""


class Facts(BaseModel):
    """What the catalogs say of a source, at one moment."""

    model_config = ConfigDict(frozen=True)

    publication: tuple[int, int] | None
    """OID and version; None where there is none of that name."""
    tables: dict[int, TableFacts]
    """By OID; without those that are gone."""
    at: int = 0
    """Where the log ended at that moment."""

    def same(self, other: Facts) -> bool:
        """Say whether nothing has changed upstream; time passes in any case."""
        tables = {oid: (facts, other.tables[oid]) for oid, facts in self.tables.items() if oid in other.tables}
        return (
            self.publication == other.publication
            and self.tables.keys() == other.tables.keys()
            and all(with_fields(one, horizon=two.horizon) == two for one, two in tables.values())
        )


def read_facts(connection: psycopg.Connection[Any], publication: str, tables: Iterable[int]) -> Facts:
    """Ask the catalogs; over any connection, also one for replication."""
    schemas = _SCHEMAS if connection.info.server_version >= _SCHEMAS_PUBLISHED_SINCE else ""
    asked: Mapping[str, Any] = {"publication": publication, "tables": list(tables)}
    # The horizon first: whoever writes after it has a later transaction, whatever the second statement sees.
    oid, version, horizon = connection.execute(_SOURCE, asked).fetchall()[0]
    rows = connection.execute(_FACTS.format(schemas=schemas), asked).fetchall()
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
