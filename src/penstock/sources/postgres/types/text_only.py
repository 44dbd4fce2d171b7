"""Types that only the server can print → string, sent as text.

money depends on `lc_monetary`, regclass and its like on the catalogs, aclitem has no binary form at all; tsvector and
tsquery sort and escape in ways of their own. Columns that are kept as text, whatever their type, are decoded here too:
should the binary form of one come, it is refused and not taken for its text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.sources.postgres.types.codec import BadValue, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gathered

__all__ = ["TEXT_ONLY"]

_REASON = "the binary form of this column is not kept; ask the server for its text (binary 'false')"


def _refuse(length: Ints) -> None:
    """Raise for the first value that is there."""
    there = np.flatnonzero(length >= 0)
    if there.size:
        raise BadValue(int(there[0]), _REASON)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gathered(pa.string(), buf, off, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    _refuse(length)
    return gathered(pa.string(), buf, off, length)


TEXT_ONLY = ColumnCodec(pa.string(), _text, _binary, wants_text=True)
