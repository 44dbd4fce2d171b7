"""Postgres types as the system catalogs describe them, with everything that decoding their values requires.

The OIDs of built-in types are the same on every server, so these types are described here, without a query. For other
types, one query collects every type that is reachable from the requested ones, and the descriptions are assembled here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psycopg

__all__ = ["PostgresType", "TypeKind", "builtin", "find_types"]


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


# -- built-in types ----------------------------------------------------------------------------------------------------

_BASE = (
    (16, "bool", 1000),
    (17, "bytea", 1001),
    (18, "char", 1002),
    (19, "name", 1003),
    (20, "int8", 1016),
    (21, "int2", 1005),
    (22, "int2vector", 1006),
    (23, "int4", 1007),
    (24, "regproc", 1008),
    (25, "text", 1009),
    (26, "oid", 1028),
    (27, "tid", 1010),
    (28, "xid", 1011),
    (29, "cid", 1012),
    (30, "oidvector", 1013),
    (114, "json", 199),
    (142, "xml", 143),
    (194, "pg_node_tree", 0),
    (600, "point", 1017),
    (601, "lseg", 1018),
    (602, "path", 1019),
    (603, "box", 1020),
    (604, "polygon", 1027),
    (628, "line", 629),
    (650, "cidr", 651),
    (700, "float4", 1021),
    (701, "float8", 1022),
    (718, "circle", 719),
    (774, "macaddr8", 775),
    (790, "money", 791),
    (829, "macaddr", 1040),
    (869, "inet", 1041),
    (1033, "aclitem", 1034),
    (1042, "bpchar", 1014),
    (1043, "varchar", 1015),
    (1082, "date", 1182),
    (1083, "time", 1183),
    (1114, "timestamp", 1115),
    (1184, "timestamptz", 1185),
    (1186, "interval", 1187),
    (1266, "timetz", 1270),
    (1560, "bit", 1561),
    (1562, "varbit", 1563),
    (1700, "numeric", 1231),
    (1790, "refcursor", 2201),
    (2202, "regprocedure", 2207),
    (2203, "regoper", 2208),
    (2204, "regoperator", 2209),
    (2205, "regclass", 2210),
    (2206, "regtype", 2211),
    (2950, "uuid", 2951),
    (2970, "txid_snapshot", 2949),
    (3220, "pg_lsn", 3221),
    (3361, "pg_ndistinct", 0),
    (3402, "pg_dependencies", 0),
    (3614, "tsvector", 3643),
    (3615, "tsquery", 3645),
    (3734, "regconfig", 3735),
    (3769, "regdictionary", 3770),
    (3802, "jsonb", 3807),
    (4072, "jsonpath", 4073),
    (4089, "regnamespace", 4090),
    (4096, "regrole", 4097),
    (4191, "regcollation", 4192),
    (4600, "pg_brin_bloom_summary", 0),
    (4601, "pg_brin_minmax_multi_summary", 0),
    (5017, "pg_mcv_list", 0),
    (5038, "pg_snapshot", 5039),
    (5069, "xid8", 271),
)
"""OID, name, OID of the array."""

_RANGES = (
    (3904, "int4range", 3905, 23, 4451, "int4multirange", 6150),
    (3906, "numrange", 3907, 1700, 4532, "nummultirange", 6151),
    (3908, "tsrange", 3909, 1114, 4533, "tsmultirange", 6152),
    (3910, "tstzrange", 3911, 1184, 4534, "tstzmultirange", 6153),
    (3912, "daterange", 3913, 1082, 4535, "datemultirange", 6155),
    (3926, "int8range", 3927, 20, 4536, "int8multirange", 6157),
)
"""OID, name, OID of the array, OID of the bounds; then OID, name and array of the multirange."""

_NAMES = {oid: name for oid, name, _ in _BASE}
_BOUNDS = {oid: (name, bound) for oid, name, _, bound, _, _, _ in _RANGES}
_MEMBERS = {multi: (name, oid) for oid, _, _, _, multi, name, _ in _RANGES}
_ELEMENTS = {
    **{array: (f"_{name}", oid) for oid, name, array in _BASE if array},
    **{array: (f"_{name}", oid) for oid, name, array, _, _, _, _ in _RANGES},
    **{array: (f"_{name}", multi) for _, _, _, _, multi, name, array in _RANGES},
}


@lru_cache(maxsize=1024)
def builtin(oid: int, typmod: int = -1) -> PostgresType | None:
    """Describe a built-in type, or an array or range of one; return None if it is not built in."""
    if oid in _NAMES:
        return PostgresType(oid, typmod, _NAMES[oid])
    for known, kind in ((_ELEMENTS, TypeKind.ARRAY), (_BOUNDS, TypeKind.RANGE), (_MEMBERS, TypeKind.MULTIRANGE)):
        if oid in known:
            name, of = known[oid]
            return PostgresType(oid, typmod, name, kind, builtin(of, typmod if kind is TypeKind.ARRAY else -1))
    return None


# -- types of a server -------------------------------------------------------------------------------------------------

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
