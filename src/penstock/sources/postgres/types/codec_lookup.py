"""Look up the codec of a type: built-in types by OID, types of extensions by name, nested types by their parts.

Descriptions of the built-in types, whose OIDs are the same on every server: no query is needed.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from penstock.sources.postgres.types.array import array, vector
from penstock.sources.postgres.types.bytea import BIT_STRING, BYTEA
from penstock.sources.postgres.types.codec import KEEP_TEXT, ColumnCodec, UnsupportedTypeError
from penstock.sources.postgres.types.composite import composite
from penstock.sources.postgres.types.floating_point import DOUBLE, REAL
from penstock.sources.postgres.types.geometry import BOX, CIRCLE, LINE, LSEG, PATH, POINT, POLYGON
from penstock.sources.postgres.types.hstore import HSTORE
from penstock.sources.postgres.types.identifiers import PG_LSN, SNAPSHOT, TID, UUID
from penstock.sources.postgres.types.integer import BIGINT, BOOLEAN, INTEGER, SMALLINT, UNSIGNED_32, UNSIGNED_64
from penstock.sources.postgres.types.interval import INTERVAL
from penstock.sources.postgres.types.network import INET, MACADDR, MACADDR8
from penstock.sources.postgres.types.numeric import NUMERIC_OID, numeric
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind
from penstock.sources.postgres.types.ranges import multirange, range_of
from penstock.sources.postgres.types.temporal import DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ
from penstock.sources.postgres.types.text import INTERNAL_CHAR, TEXT, TEXT_ONLY, VERSIONED

__all__ = ["BY_NAME", "BY_OID", "builtin", "codec_for"]


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


BY_OID = {
    16: BOOLEAN,
    17: BYTEA,
    18: INTERNAL_CHAR,
    19: TEXT,  # name
    20: BIGINT,
    21: SMALLINT,
    22: vector(21, SMALLINT),
    23: INTEGER,
    24: TEXT_ONLY,  # regproc
    25: TEXT,
    26: UNSIGNED_32,  # oid
    27: TID,
    28: UNSIGNED_32,  # xid
    29: UNSIGNED_32,  # cid
    30: vector(26, UNSIGNED_32),
    114: TEXT,  # json
    142: TEXT,  # xml
    194: TEXT,  # pg_node_tree
    600: POINT,
    601: LSEG,
    602: PATH,
    603: BOX,
    604: POLYGON,
    628: LINE,
    650: INET,  # cidr
    700: REAL,
    701: DOUBLE,
    718: CIRCLE,
    774: MACADDR8,
    790: TEXT_ONLY,  # money
    829: MACADDR,
    869: INET,
    1033: TEXT_ONLY,  # aclitem
    1042: TEXT,  # bpchar
    1043: TEXT,  # varchar
    1082: DATE,
    1083: TIME,
    1114: TIMESTAMP,
    1184: TIMESTAMPTZ,
    1186: INTERVAL,
    1266: TIMETZ,
    1560: BIT_STRING,  # bit
    1562: BIT_STRING,  # varbit
    1790: TEXT,  # refcursor
    2202: TEXT_ONLY,  # regprocedure
    2203: TEXT_ONLY,  # regoper
    2204: TEXT_ONLY,  # regoperator
    2205: TEXT_ONLY,  # regclass
    2206: TEXT_ONLY,  # regtype
    2950: UUID,
    2970: SNAPSHOT,  # txid_snapshot
    3220: PG_LSN,
    3361: TEXT_ONLY,  # pg_ndistinct
    3402: TEXT_ONLY,  # pg_dependencies
    3614: TEXT_ONLY,  # tsvector
    3615: TEXT_ONLY,  # tsquery
    3734: TEXT_ONLY,  # regconfig
    3769: TEXT_ONLY,  # regdictionary
    3802: VERSIONED,  # jsonb
    4072: VERSIONED,  # jsonpath
    4089: TEXT_ONLY,  # regnamespace
    4096: TEXT_ONLY,  # regrole
    4191: TEXT_ONLY,  # regcollation
    4600: TEXT_ONLY,  # pg_brin_bloom_summary
    4601: TEXT_ONLY,  # pg_brin_minmax_multi_summary
    5017: TEXT_ONLY,  # pg_mcv_list
    5038: SNAPSHOT,  # pg_snapshot
    5069: UNSIGNED_64,  # xid8
}
"""Built-in types, except numeric, whose codec depends on its modifier."""

BY_NAME = {"citext": TEXT, "hstore": HSTORE}
"""Types of extensions."""

_BOX_OID = 603


@lru_cache(maxsize=4096)
def codec_for(kind: PostgresType) -> ColumnCodec:
    """Return the codec of a column of this type; raises `UnsupportedTypeError` if no Arrow type holds it exactly."""
    if kind.kind is TypeKind.COMPOSITE:
        return _composite(kind)
    if kind.kind is TypeKind.ENUM:
        return TEXT
    if kind.kind is TypeKind.BASE:
        return _base(kind)
    if kind.of is None:
        raise _unsupported(kind, "the type of its parts is unknown")
    part = codec_for(kind.of)
    if kind.kind is TypeKind.ARRAY:
        return array(kind.of.oid, part, _delimiter(kind.of))
    if kind.kind is TypeKind.RANGE:
        return range_of(part)
    return multirange(part) if kind.kind is TypeKind.MULTIRANGE else part


def _base(kind: PostgresType) -> ColumnCodec:
    if kind.oid == NUMERIC_OID:
        return numeric(kind.typmod)
    codec = BY_OID.get(kind.oid) or BY_NAME.get(kind.name)
    if codec is not None:
        return codec
    known = builtin(kind.oid, kind.typmod)
    if known is None:
        raise _unsupported(kind, "it has no exact Arrow form")
    return codec_for(known)


def _composite(kind: PostgresType) -> ColumnCodec:
    names = [name for name, _ in kind.fields]
    duplicates = sorted(name for name, count in Counter(name.lower() for name in names).items() if count > 1)
    if duplicates:
        raise _unsupported(
            kind, f"its fields {', '.join(duplicates)} differ by case alone, which Spark does not distinguish"
        )
    if not names:
        raise _unsupported(kind, "it has no fields")
    parts = [part for _, part in kind.fields]
    return composite(names, [part.oid for part in parts], [codec_for(part) for part in parts])


def _delimiter(element: PostgresType) -> str:
    """Return the delimiter of array elements: a domain has that of its base type."""
    while element.kind is TypeKind.DOMAIN and element.of is not None:
        element = element.of
    return ";" if element.oid == _BOX_OID else ","


def _unsupported(kind: PostgresType, reason: str) -> UnsupportedTypeError:
    name = f"type {kind.name}" if kind.name else f"type with OID {kind.oid}"
    return UnsupportedTypeError(kind.oid, kind.typmod, f"{name}: {reason}{KEEP_TEXT}")
