"""Describe columns that were added to a captured table, and determine their value in older rows.

A row that is older than a column has the default that the column was added with, or null, without being written, so
the stream does not contain that value. Postgres keeps the one value in its catalog (``attmissingval``) until the table
is rewritten; a volatile default or an identity column rewrites the table at once.

    in the catalog                                 → that value
    not in the catalog, filenode unchanged         → null: no value was ever filled in
    not in the catalog, filenode changed           → unknown: VACUUM FULL, TRUNCATE, or a value for each row

While no column is new, capture reads the filenodes periodically (`current_filenodes`), so that only rewrites since the
last read count.

The column of the catalog has to be the one that the changes have, and capture may lag. Numbers of columns only grow, so
a column that was dropped, and another one added under its name, leaves a dropped column after the last known one.

Capture of a table continues only if the value is proven; an unknown value stops the table until it is resnapshotted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from penstock.model import RESCUED, TableName, is_reserved
from penstock.sources.postgres.captured_table import DECLARATION, CapturedColumn, CapturedTable, Declaration
from penstock.sources.postgres.pgoutput.relations import Relation, RelationColumn
from penstock.sources.postgres.types import BadValueError, find_types, is_supported

__all__ = ["current_filenodes", "describe_added_columns"]

_COLUMN = f"""
SELECT a.atttypid, a.atttypmod, a.atthasmissing, array_to_string(a.attmissingval, ''),
       a.attidentity <> '' OR a.attgenerated <> '', col_description(a.attrelid, a.attnum),
       pg_relation_filenode(a.attrelid), {DECLARATION}, a.attnum,
       EXISTS (SELECT 1 FROM pg_attribute d WHERE d.attrelid = a.attrelid AND d.attisdropped
                AND d.attnum > %(width)s AND d.attnum < a.attnum)
  FROM pg_attribute a
 WHERE a.attrelid = %(table)s AND a.attname = %(column)s AND NOT a.attisdropped
"""


_ALL_COLUMNS = 32767
"""The width of a table of which it is not known, because an earlier version captured it."""
_FILES = "SELECT oid::bigint, pg_relation_filenode(oid)::bigint, relnatts FROM pg_class WHERE oid = ANY(%s)"


@dataclass(frozen=True)
class _Found:
    """A column, from ``pg_attribute``; `filled` is true for identity and generated columns.

    `number` is that of the column. `after_dropped` says whether another column was added since the last known one, and
    dropped before this was added.
    """

    oid: int
    typmod: int
    has_missing: bool
    missing: str | None
    filled: bool
    comment: str | None
    filenode: int | None
    declaration: Mapping[str, Any]
    number: int
    after_dropped: bool


def current_filenodes(connection: psycopg.Connection[Any], tables: Iterable[CapturedTable]) -> dict[TableName, int]:
    """Return the current filenode of each table that has no columns beyond the known ones.

    Rewrites before this moment cannot have filled a column that is still unknown, so the filenode is a new baseline for
    the proof.
    """
    known = {table.oid: table for table in tables}
    found = connection.execute(_FILES, (list(known),)).fetchall()
    return {known[oid].name: filenode for oid, filenode, width in found if filenode and width == known[oid].width}


def describe_added_columns(
    connection: psycopg.Connection[Any], table: CapturedTable, relation: Relation
) -> CapturedTable | str:
    """Return the table with the additional columns of `relation`; or the reason why their values are unknown."""
    added: list[CapturedColumn] = []
    for declared in relation.columns[len(table.present) :]:
        described = _name_problem([*table.columns, *added], declared.name, table) or _describe(
            connection, table, declared
        )
        if isinstance(described, str):
            return f"column {declared.name} was added upstream: {described}"
        added.append(described)
    return table.with_added(added)


def _name_problem(columns: Sequence[CapturedColumn], name: str, table: CapturedTable) -> str | None:
    """Return why a name cannot be used downstream, beside these columns; None if it can."""
    if name.lower() in {column.name.lower() for column in columns}:
        return "another column has the same name but for its case, which Spark does not distinguish"
    if is_reserved(name.lower()):
        return "this name is reserved by Penstock"
    if table.rescue and name.lower() == RESCUED:
        return "on unrepresentable = 'rescue' uses this name"
    return None


def _describe(
    connection: psycopg.Connection[Any], table: CapturedTable, declared: RelationColumn
) -> CapturedColumn | str:
    wanted = {"table": table.oid, "column": declared.name, "width": table.width or _ALL_COLUMNS}
    row = connection.execute(_COLUMN, wanted).fetchone()
    found = _Found(*row) if row else None
    if found is None or (found.oid, found.typmod) != (declared.oid, declared.typmod):
        return "it was altered or dropped since, so its value in older rows is unknown"
    if found.number <= table.width:
        return "it was not captured under an earlier name, or was computed: its value in older rows is unknown"
    if found.after_dropped:
        return "another column was added and dropped before it, and may be the one that these changes have"
    if found.filled:
        return "Postgres computed a value for each older row, and the stream does not contain those values"
    if not found.has_missing and (found.filenode is None or found.filenode != table.filenode):
        return "the table may have been rewritten since, so its value in older rows cannot be proven"
    kind = find_types(connection, [(declared.oid, declared.typmod)])[declared.oid, declared.typmod]
    column = CapturedColumn(
        declared.name,
        kind,
        as_text=not is_supported(kind),
        comment=found.comment,
        added=True,
        missing=found.missing if found.has_missing else None,
        number=found.number,
        # Optional: readers of earlier messages do not have it, and a required field would be incompatible with them.
        declaration=replace(Declaration.parse(found.declaration), not_null=False),
    )
    try:
        column.field()
    except BadValueError as bad:
        return f"older rows have a default that cannot be stored: {bad.reason}"
    return column
