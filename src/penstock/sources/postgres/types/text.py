"""text, varchar, bpchar, name, json, xml, refcursor, enums, citext → string; jsonb, jsonpath → string.

Text and binary forms are the same bytes, copied unchanged: bpchar keeps its padding. The binary form of jsonb and
jsonpath is the version byte 1 and then the text.

Sessions set `client_encoding` to UTF8, and Postgres verifies what it converts (also from SQL_ASCII), so the bytes are
not checked again. If invalid UTF-8 arrives nevertheless, offsets and sizes are still correct: a reader gets a decoding
error, not foreign memory.
"""

from __future__ import annotations

import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes
from penstock.sources.postgres.types.kernel import FINE, IN8, IN32, blame, kernel

__all__ = ["TEXT", "VERSIONED"]

_REASONS = ("jsonb or jsonpath of a version other than 1",)


@kernel(nb.int64(IN8, IN32, IN32))
def _version(buf: Bytes, off: Ints, length: Ints) -> int:
    for r in range(length.size):
        if length[r] >= 0 and (length[r] == 0 or buf[off[r]] != 1):
            return blame(r, 0)
    return FINE


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.string(), buf, off, length)


def _versioned(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    BadValueError.check(_version(buf, off, length), _REASONS)
    return gather_bytes(pa.string(), buf, off, length, skip=1)


TEXT = ColumnCodec(pa.string(), _text, _text)
VERSIONED = ColumnCodec(pa.string(), _text, _versioned)
