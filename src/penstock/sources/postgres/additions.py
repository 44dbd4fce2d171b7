"""Columns that were added to a captured table: what they are, and what older rows hold in them.

A row that is older than a column has the column's default of that time, or null, without ever being written: nothing
of it comes in the stream. Postgres keeps that one value in its catalog (``attmissingval``) until the table is
rewritten; a default that differs by row, or an identity, rewrites it at once.

    kept in the catalog                            → that value
    not kept, and the table's file is the same     → null: nothing was ever filled in
    not kept, and the file is another one          → unknown: VACUUM FULL, TRUNCATE, or values row by row

The file is looked at now and then while no column is new (`current_files`), so that only a rewrite since counts.

Only what is proven goes on; the unknown ends the table, and a fresh copy brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedColumn, CapturedTable
from penstock.sources.postgres.relations import Relation, RelationColumn
from penstock.sources.postgres.types import UnsupportedTypeError, find_types

__all__ = ["current_files", "describe_additions"]

_COLUMN = """
SELECT a.atttypid, a.atttypmod, a.atthasmissing, array_to_string(a.attmissingval, ''),
       a.attidentity <> '' OR a.attgenerated <> '', col_description(a.attrelid, a.attnum),
       pg_relation_filenode(a.attrelid)
  FROM pg_attribute a
 WHERE a.attrelid = %s AND a.attname = %s AND NOT a.attisdropped
"""


_FILES = "SELECT oid::bigint, pg_relation_filenode(oid)::bigint, relnatts FROM pg_class WHERE oid = ANY(%s)"


@dataclass(frozen=True)
class _Found:
    """A column as the catalog has it now."""

    oid: int
    typmod: int
    has_missing: bool
    missing: str | None
    filled: bool
    comment: str | None
    filenode: int | None


def current_files(connection: psycopg.Connection[Any], tables: Iterable[CapturedTable]) -> dict[TableName, int]:
    """Return which file holds each table now, of those that have no columns beyond the ones we know.

    A rewrite up to now then concerned none that we still have to learn of: the file is a new base for that proof.
    """
    known = {table.oid: table for table in tables}
    found = connection.execute(_FILES, (list(known),)).fetchall()
    return {known[oid].name: filenode for oid, filenode, width in found if filenode and width == known[oid].width}


def describe_additions(
    connection: psycopg.Connection[Any], table: CapturedTable, relation: Relation
) -> CapturedTable | str:
    """Return the table with the columns that `relation` has beyond it; or why that cannot be known for sure."""
    added = []
    for declared in relation.columns[len(table.columns) :]:
        described = _describe(connection, table, declared)
        if isinstance(described, str):
            return f"column {declared.name} was added upstream, and {described}"
        added.append(described)
    return table.with_added(added)


def _describe(
    connection: psycopg.Connection[Any], table: CapturedTable, declared: RelationColumn
) -> CapturedColumn | str:
    row = connection.execute(_COLUMN, (table.oid, declared.name)).fetchone()
    found = _Found(*row) if row else None
    if found is None or (found.oid, found.typmod) != (declared.oid, declared.typmod):
        return "has been changed or dropped since: what older rows held in it is not known"
    if found.filled:
        return "older rows were filled in one by one, which the stream does not carry"
    if not found.has_missing and (found.filenode is None or found.filenode != table.filenode):
        return "the table may have been rewritten since: what older rows hold in it cannot be proven"
    column = CapturedColumn(
        declared.name,
        find_types(connection, [(declared.oid, declared.typmod)])[declared.oid, declared.typmod],
        comment=found.comment,
        added=True,
        missing=found.missing if found.has_missing else None,
    )
    return _checked(column)


def _checked(column: CapturedColumn) -> CapturedColumn | str:
    try:
        column.field()
    except UnsupportedTypeError as error:
        return f"its type cannot be kept: {error.reason}"
    return column
