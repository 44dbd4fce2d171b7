"""Postgres wire values → Arrow columns: one file per family of types.

::

    PostgresType ── codec_for ──▶ ColumnCodec ── text(buf, off, length)   ──▶ pa.Array
                                              └─ binary(buf, off, length) ──▶ the same pa.Array

    boolean  integer  floating  numeric  temporal  text  internal_char  bytea  uuid     the families
    codec    what a codec is, BadValue, UnsupportedType
    kernel   compiled functions and their cache          column   numpy memory → Arrow

Decoding does no I/O and makes no Python object per value. A type that is not here has no exact Arrow form yet; `TEXT
COLUMNS` maps such a column to its text.
"""

from __future__ import annotations

from penstock.sources.postgres.types.boolean import BOOLEAN
from penstock.sources.postgres.types.bytea import BYTEA
from penstock.sources.postgres.types.codec import BadValue, ColumnCodec, UnsupportedType
from penstock.sources.postgres.types.floating import DOUBLE, REAL
from penstock.sources.postgres.types.integer import BIGINT, INTEGER, SMALLINT
from penstock.sources.postgres.types.internal_char import INTERNAL_CHAR
from penstock.sources.postgres.types.kernel import compile_all
from penstock.sources.postgres.types.numeric import NUMERIC_OID, numeric
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind
from penstock.sources.postgres.types.temporal import DATE, TIMESTAMP, TIMESTAMPTZ
from penstock.sources.postgres.types.text import JSONB, TEXT
from penstock.sources.postgres.types.uuid import UUID

__all__ = ["TEXT", "BadValue", "ColumnCodec", "PostgresType", "TypeKind", "UnsupportedType", "codec_for", "warm"]

_BY_OID = {
    16: BOOLEAN,
    17: BYTEA,
    18: INTERNAL_CHAR,
    19: TEXT,  # name
    20: BIGINT,
    21: SMALLINT,
    23: INTEGER,
    25: TEXT,
    114: TEXT,  # json
    700: REAL,
    701: DOUBLE,
    1042: TEXT,  # bpchar
    1043: TEXT,  # varchar
    1082: DATE,
    1114: TIMESTAMP,
    1184: TIMESTAMPTZ,
    2950: UUID,
    3802: JSONB,
}


def codec_for(kind: PostgresType) -> ColumnCodec:
    """The codec of a column of this type; raises `UnsupportedType` if no Arrow type holds it exactly."""
    if kind.oid == NUMERIC_OID:
        return numeric(kind.typmod)
    codec = _BY_OID.get(kind.oid)
    if codec is None:
        reason = "no exact Arrow type is known for it yet; a column of type text would keep its text"
        raise UnsupportedType(kind.oid, kind.typmod, reason)
    return codec


def warm() -> None:
    """Compile every kernel, or load it from the cache on disk, so that no row waits for it later."""
    compile_all()
