"""Postgres wire values → Arrow columns: one file per family of types.

::

    (oid, typmod) ── builtin, find_types ──▶ PostgresType ── codec_for ──▶ ColumnCodec

    ColumnCodec ── text(buf, off, length)   ──▶ pa.Array
                └─ binary(buf, off, length) ──▶ the same pa.Array

    boolean  integer  unsigned  floating  numeric  numeric_text  temporal  time_of_day  interval
    text  internal_char  bytea  uuid  bit_string  network  shapes  place  text_only              families of scalars
    array  between (ranges)  composite  hstore                                                   types made of others

    known    which codec a type has                       builtin  find   what a type is
    codec    what a codec is, BadValue, UnsupportedTypeError   nested          what types made of others share
    kernel   compiled functions and their cache           column          numpy memory → Arrow
    printing  shortest                                    binary values → the text that Postgres prints

Decoding does no I/O and makes no Python object per value. A type that is not here has no exact Arrow form yet; the
option `text columns` keeps such a column as its text.
"""

from __future__ import annotations

from penstock.sources.postgres.types.builtin import builtin
from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValue, ColumnCodec, UnsupportedTypeError
from penstock.sources.postgres.types.find import find_types
from penstock.sources.postgres.types.kernel import compile_all
from penstock.sources.postgres.types.known import codec_for
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind
from penstock.sources.postgres.types.text import TEXT
from penstock.sources.postgres.types.text_only import TEXT_ONLY

__all__ = [
    "KEEP_TEXT",
    "TEXT",
    "TEXT_ONLY",
    "BadValue",
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
