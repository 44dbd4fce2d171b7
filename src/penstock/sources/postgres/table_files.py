"""The files that hold a table upstream: a different file means that the table was truncated or rewritten.

Postgres hides changes from older snapshots, with two exceptions: a table that was truncated since, or rewritten by an
ALTER TABLE, looks *empty* to them. So a copy under an exported snapshot is complete only if the files are still those
that the snapshot shows. (VACUUM FULL and CLUSTER create new files too, and keep what older snapshots need.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

__all__ = ["TableFiles", "table_files"]

TableFiles = frozenset[tuple[int, int]]
"""The table and its partitions: (OID, filenode) of each."""

_FILES = """
WITH RECURSIVE part(root, oid) AS (
  SELECT oid, oid FROM pg_class WHERE oid = ANY(%s)
  UNION ALL
  SELECT root, inhrelid FROM part JOIN pg_inherits ON inhparent = part.oid JOIN pg_class c ON c.oid = inhrelid
   WHERE c.relispartition)
SELECT root::bigint, oid::bigint, relfilenode::bigint FROM part JOIN pg_class USING (oid)
"""


def table_files(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, TableFiles]:
    """Return the files of tables, as this connection's transaction sees them; none for a table that is gone."""
    found: dict[int, set[tuple[int, int]]] = {oid: set() for oid in oids}
    for root, oid, file in connection.execute(_FILES, (list(found),)):
        found[root].add((oid, file))
    return {oid: frozenset(files) for oid, files in found.items()}
