"""Descriptions of the built-in types, whose OIDs are the same on every server: no query is needed."""

from __future__ import annotations

from functools import lru_cache

from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind

__all__ = ["builtin"]

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
