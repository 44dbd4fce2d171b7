"""Types that only the server can print → string, sent as text.

money depends on `lc_monetary`, regclass and similar types on the catalogs, aclitem has no binary form at all; tsvector
and tsquery have their own sorting and escaping. Columns that are stored as text, of any type, are decoded here too: if
the binary form of one arrives, it is rejected and not mistaken for its text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes

__all__ = ["TEXT_ONLY"]

_REASON = "the binary form of this column is not supported; request its text from the server (binary 'false')"


def _reject_values(length: Ints) -> None:
    """Raise for the first value that is not null."""
    present = np.flatnonzero(length >= 0)
    if present.size:
        raise BadValueError(int(present[0]), _REASON)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.string(), buf, off, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    _reject_values(length)
    return gather_bytes(pa.string(), buf, off, length)


TEXT_ONLY = ColumnCodec(pa.string(), _text, _binary, wants_text=True)
