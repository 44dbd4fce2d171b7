"""Look up the codec of a type: built-in types by OID, types of extensions by name, nested types by their parts.

A column may also be stored as text, whatever its type. If its binary form can be printed here, exactly as Postgres
does, the stream can stay binary; otherwise the server has to print it, and the whole stream is sent as text.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from penstock.sources.postgres.types.array import array, vector
from penstock.sources.postgres.types.bytea import BIT_STRING, BYTEA
from penstock.sources.postgres.types.codec import ColumnCodec
from penstock.sources.postgres.types.composite import composite
from penstock.sources.postgres.types.floating_point import DOUBLE, REAL
from penstock.sources.postgres.types.geometry import BOX, CIRCLE, LINE, LSEG, PATH, POINT, POLYGON
from penstock.sources.postgres.types.hstore import HSTORE
from penstock.sources.postgres.types.identifiers import PG_LSN, SNAPSHOT, TID, UUID
from penstock.sources.postgres.types.integer import BIGINT, BOOLEAN, INTEGER, SMALLINT, UNSIGNED_32, UNSIGNED_64
from penstock.sources.postgres.types.interval import INTERVAL
from penstock.sources.postgres.types.network import INET, MACADDR, MACADDR8
from penstock.sources.postgres.types.numeric import NUMERIC_OID, numeric
from penstock.sources.postgres.types.pgvector import VECTOR
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind, builtin
from penstock.sources.postgres.types.ranges import multirange, range_of
from penstock.sources.postgres.types.supported import check_supported
from penstock.sources.postgres.types.temporal import (
    DATE,
    DATE_TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMP_TEXT,
    TIMESTAMPTZ,
    TIMESTAMPTZ_TEXT,
    TIMETZ,
)
from penstock.sources.postgres.types.text import INTERNAL_CHAR, TEXT, TEXT_ONLY, VERSIONED

__all__ = ["BY_NAME", "BY_OID", "codec_for", "delimiter_of", "text_codec_for"]

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

BY_NAME = {
    "citext": TEXT,
    "hstore": HSTORE,
    "lquery": VERSIONED,
    "ltree": VERSIONED,
    "ltxtquery": VERSIONED,
    "vector": VECTOR,
}
"""Types of extensions."""

_BOX_OID = 603
_AS_TEXT = {1082: DATE_TEXT, 1114: TIMESTAMP_TEXT, 1184: TIMESTAMPTZ_TEXT, NUMERIC_OID: numeric(-1)}
"""Types with a codec of their own for columns that are stored as text."""


@lru_cache(maxsize=4096)
def codec_for(kind: PostgresType) -> ColumnCodec:
    """Return the codec of a column of this type; raises `UnsupportedTypeError` if no Arrow type holds it exactly."""
    check_supported(kind)
    if kind.kind is TypeKind.COMPOSITE:
        parts = [part for _, part in kind.fields]
        return composite([name for name, _ in kind.fields], [part.oid for part in parts], [*map(codec_for, parts)])
    if kind.kind is TypeKind.ENUM:
        return TEXT
    if kind.of is None:
        return _base(kind)
    part = codec_for(kind.of)
    if kind.kind is TypeKind.ARRAY:
        return array(kind.of.oid, part, delimiter_of(kind.of))
    if kind.kind is TypeKind.RANGE:
        return range_of(part)
    return multirange(part) if kind.kind is TypeKind.MULTIRANGE else part


def text_codec_for(kind: PostgresType) -> ColumnCodec:
    """Return the codec of a column of this type that is stored as the text that Postgres prints."""
    if kind.kind is TypeKind.DOMAIN and kind.of is not None:
        return text_codec_for(kind.of)
    if kind.kind is TypeKind.ENUM:
        return TEXT
    if kind.kind is not TypeKind.BASE:
        return TEXT_ONLY
    codec = _AS_TEXT.get(kind.oid) or BY_OID.get(kind.oid) or BY_NAME.get(kind.name)
    # A "char" is one byte, of which Postgres prints some as an escape.
    return codec if codec is not None and codec.arrow == pa.string() and codec is not INTERNAL_CHAR else TEXT_ONLY


def _base(kind: PostgresType) -> ColumnCodec:
    if kind.oid == NUMERIC_OID:
        return numeric(kind.typmod)
    codec = BY_OID.get(kind.oid) or BY_NAME.get(kind.name)
    if codec is not None:
        return codec
    known = builtin(kind.oid, kind.typmod)
    assert known is not None, kind
    return codec_for(known)


def delimiter_of(element: PostgresType) -> str:
    """Return the delimiter of array elements: a domain has that of its base type."""
    while element.kind is TypeKind.DOMAIN and element.of is not None:
        element = element.of
    return ";" if element.oid == _BOX_OID else ","
