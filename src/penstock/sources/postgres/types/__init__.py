"""Postgres wire values → Arrow columns: one file per type family.

::

    (oid, typmod) ── builtin, find_types ──▶ PostgresType ── codec_for ──▶ ColumnCodec

    ColumnCodec ── text(buf, off, length)   ──▶ pa.Array
                └─ binary(buf, off, length) ──▶ the same pa.Array

    boolean  integer  unsigned  floating_point  numeric  numeric_text  temporal  time_of_day  interval
    text  internal_char  bytea  uuid  bit_string  network  geometry  tid_lsn_snapshot  text_only     scalar types
    array  ranges  composite  hstore                                                                 nested types

    codec_lookup  the codec of a type                     builtin  type_lookup   the description of a type
    codec         ColumnCodec and its errors              nested                 shared by nested types
    kernel        compiled functions and their cache      column                 numpy memory → Arrow
    text_output  double_text                              binary values → the text that Postgres prints
    double_parse                                          decimal digits → the nearest double

Decoding does no I/O and creates no Python object per value. A type that is not listed has no exact Arrow form yet; the
option `text columns` stores such a column as text.
"""

from __future__ import annotations

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, ColumnCodec, UnsupportedTypeError
from penstock.sources.postgres.types.codec_lookup import codec_for
from penstock.sources.postgres.types.kernel import compile_all
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind, builtin, find_types
from penstock.sources.postgres.types.text import TEXT, TEXT_ONLY

__all__ = [
    "KEEP_TEXT",
    "TEXT",
    "TEXT_ONLY",
    "BadValueError",
    "ColumnCodec",
    "PostgresType",
    "TypeKind",
    "UnsupportedTypeError",
    "builtin",
    "codec_for",
    "find_types",
    "warm",
]


def warm() -> None:
    """Compile every kernel, or load it from the cache on disk, so that no row waits for it later."""
    compile_all()
