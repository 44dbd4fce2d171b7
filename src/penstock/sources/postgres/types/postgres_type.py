"""A Postgres type as the system catalogs describe it, with everything that decoding its values requires.

Look up types in the server's catalogs, with the types that they consist of.

One query collects every type that is reachable from the requested ones; the descriptions are assembled here. Built-in
types need no query.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.sources.postgres.types.codec_lookup import builtin

__all__ = ["PostgresType", "TypeKind", "find_types"]


class TypeKind(enum.StrEnum):
    """The kind of a type."""

    BASE = "base"
    """A scalar type, identified by `oid`."""
    ARRAY = "array"
    """Elements of the type `of`."""
    ENUM = "enum"
    DOMAIN = "domain"
    """Values of the type `of`, sent as such."""
    RANGE = "range"
    """A range with bounds of the type `of`."""
    MULTIRANGE = "multirange"
    """Ranges of the type `of`."""
    COMPOSITE = "composite"
    """Named `fields`."""


@dataclass(frozen=True)
class PostgresType:
    """A type with its modifier. A plain value: it is stored in the catalog and sent to Spark workers."""

    oid: int
    typmod: int = -1
    name: str = ""
    """The name of a base type in ``pg_type``; identifies types of extensions, whose OIDs differ between databases."""
    kind: TypeKind = TypeKind.BASE
    of: PostgresType | None = None
    fields: tuple[tuple[str, PostgresType], ...] = ()


_TYPES = """
WITH RECURSIVE reached (oid) AS (
    SELECT unnest(%s::oid[])
  UNION
    SELECT parts.oid FROM reached, LATERAL (
        SELECT unnest(ARRAY[t.typelem, t.typbasetype]) FROM pg_type t WHERE t.oid = reached.oid
        UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = reached.oid
        UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = reached.oid
        UNION ALL SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
                   WHERE t.oid = reached.oid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
    ) AS parts (oid) WHERE parts.oid <> 0
)
SELECT t.oid::bigint, t.typname, t.typtype::text,
       (SELECT e.oid FROM pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid)::bigint,
       t.typbasetype::bigint, t.typtypmod,
       (SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid)::bigint,
       (SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid)::bigint,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c'
              AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT a.atttypid::bigint FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c'
              AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT a.atttypmod FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c'
              AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
  FROM pg_type t JOIN reached USING (oid)
"""


@dataclass(frozen=True)
class _Row:
    name: str
    kind: str
    element: int | None
    base: int
    base_typmod: int
    bound: int | None
    member: int | None
    field_names: list[str]
    field_types: list[int]
    field_typmods: list[int]


def find_types(
    connection: psycopg.Connection[Any], wanted: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], PostgresType]:
    """Describe the types with these OIDs and modifiers; an unknown OID is a base type without a name."""
    requested = set(wanted)
    unknown = sorted({oid for oid, typmod in requested if builtin(oid, typmod) is None})
    rows: dict[int, _Row] = {}
    if unknown:
        with connection.cursor() as cursor:
            found = cursor.execute(_TYPES, (unknown,)).fetchall()
        rows = {oid: _Row(*rest) for oid, *rest in found}
    return {(oid, typmod): _described(rows, oid, typmod) for oid, typmod in requested}


def _described(rows: Mapping[int, _Row], oid: int, typmod: int) -> PostgresType:
    known = builtin(oid, typmod)
    row = rows.get(oid)
    if known is not None or row is None:
        return known or PostgresType(oid, typmod)
    if row.element is not None:  # the modifier of an array is that of its elements
        return PostgresType(oid, typmod, row.name, TypeKind.ARRAY, _described(rows, row.element, typmod))
    if row.kind == "d":
        base = _described(rows, row.base, row.base_typmod)
        return PostgresType(oid, typmod, row.name, TypeKind.DOMAIN, base)
    if row.bound is not None:
        return PostgresType(oid, typmod, row.name, TypeKind.RANGE, _described(rows, row.bound, -1))
    if row.member is not None:
        return PostgresType(oid, typmod, row.name, TypeKind.MULTIRANGE, _described(rows, row.member, -1))
    if row.kind == "c":
        parts = zip(row.field_names, row.field_types, row.field_typmods, strict=True)
        fields = tuple((name, _described(rows, part, modifier)) for name, part, modifier in parts)
        return PostgresType(oid, typmod, row.name, TypeKind.COMPOSITE, fields=fields)
    return PostgresType(oid, typmod, row.name, TypeKind.ENUM if row.kind == "e" else TypeKind.BASE)
