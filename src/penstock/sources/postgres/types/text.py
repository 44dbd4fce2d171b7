"""text, varchar, bpchar, name, json, xml, enums, citext, jsonb, jsonpath, ltree, "char" → string; text-only types.

Text and binary forms are the same bytes, copied unchanged: bpchar keeps its padding. The binary form of jsonb, jsonpath
and the types of the extension ltree is the version byte 1 and then the text.

Sessions set `client_encoding` to UTF8, and Postgres verifies what it converts (also from SQL_ASCII), so the bytes are
not checked again. If invalid UTF-8 arrives nevertheless, offsets and sizes are still correct: a reader gets a decoding
error, not foreign memory.

**Text-only types** are those that only the server can print, sent as text. money depends on `lc_monetary`, regclass and
similar types on the catalogs, aclitem has no binary form at all; tsvector and tsquery have their own sorting and
escaping. Columns that are stored as text, of any type, are decoded here too: if the binary form of one arrives, it is
rejected and not mistaken for its text.

**"char"** is one byte; the quotes belong to its name. The binary form is the raw byte, which from 0x80 on is not valid
UTF-8. Text is what `charout` prints: nothing for the byte 0, the character itself for ASCII, and a backslash with three
octal digits for the rest. Both forms become that text. High bytes that a server before 16 prints raw raise
`BadValueError`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import check_size, gather_bytes, variable_width
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, kernel

__all__ = ["INTERNAL_CHAR", "TEXT", "TEXT_ONLY", "VERSIONED"]

_VERSION_REASONS = ("jsonb, jsonpath or ltree of a version other than 1",)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.string(), buf, off, length)


@kernel(nb.int64(IN8, IN32, IN32))
def _version(buf: Bytes, off: Ints, length: Ints) -> int:
    for r in range(length.size):
        if length[r] >= 0 and (length[r] == 0 or buf[off[r]] != 1):
            return blame(r, 0)
    return FINE


def _versioned(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    BadValueError.check(_version(buf, off, length), _VERSION_REASONS)
    return gather_bytes(pa.string(), buf, off, length, skip=1)


TEXT = ColumnCodec(pa.string(), _text, _text)
VERSIONED = ColumnCodec(pa.string(), _text, _versioned)


# -- text-only types ---------------------------------------------------------------------------------------------------

_TEXT_ONLY_REASON = "the binary form of this column is not supported; request its text from the server (binary 'false')"


def _reject_values(length: Ints) -> None:
    """Raise for the first value that is not null."""
    present = np.flatnonzero(length >= 0)
    if present.size:
        raise BadValueError(int(present[0]), _TEXT_ONLY_REASON)


def _reject_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    _reject_values(length)
    return gather_bytes(pa.string(), buf, off, length)


TEXT_ONLY = ColumnCodec(pa.string(), _text, _reject_binary, wants_text=True)


# -- "char" ------------------------------------------------------------------------------------------------------------

_CHAR_REASONS = (
    'malformed "char"',
    '"char" above 0x7f sent as a raw byte; change the column to bytea, or use Postgres 16 or later',
)


@kernel(nb.int64(IN8, IN32, IN32))
def _check_chars(buf: Bytes, off: Ints, length: Ints) -> int:
    for r in range(length.size):
        at = off[r]
        if length[r] <= 0:
            continue
        if length[r] == 1:
            if buf[at] >= 0x80:
                return blame(r, 1)
        elif length[r] != 4 or buf[at] != 92:
            return blame(r, 0)
        else:
            for k in range(1, 4):
                if buf[at + k] < 48 or buf[at + k] > 55:
                    return blame(r, 0)
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_chars(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end = 0
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 1:
            return blame(r, 0)
        byte = buf[off[r]]
        if byte >= 0x80:
            data[end] = 92
            data[end + 1] = 48 + (byte >> 6)
            data[end + 2] = 48 + ((byte >> 3) & 7)
            data[end + 3] = 48 + (byte & 7)
            end += 4
        elif byte:
            data[end] = byte
            end += 1
    offsets[length.size] = end
    return FINE


def _char_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    BadValueError.check(_check_chars(buf, off, length), _CHAR_REASONS)
    return gather_bytes(pa.string(), buf, off, length)


def _char_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    data = np.empty(check_size(length.size * 4), np.uint8)
    BadValueError.check(_print_chars(buf, off, length, offsets, data), _CHAR_REASONS)
    return variable_width(pa.string(), offsets, data, length)


INTERNAL_CHAR = ColumnCodec(pa.string(), _char_text, _char_binary)
