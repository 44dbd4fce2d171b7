"""Column codecs and their two errors.

A codec takes a column as `(buf, off, length)`: `buf` holds wire bytes, value `r` is `buf[off[r]:off[r] + length[r]]`.
`length` is `NULL` (-1) for NULL and `UNCHANGED` (-2) for a TOASTed value that Postgres did not send; both become null
in the array, and the caller distinguishes them. Offsets and lengths are trusted to lie inside `buf`, because the
splitter guarantees it. The bytes of a value are not trusted at all.

A codec never loses information silently: it returns every value exactly, or raises `BadValueError` for the first one
that it cannot represent. If some valid values cannot be represented, the codec can also find all of them at once
(`unrepresentable`), so that a caller can keep their text instead (see `penstock.sources.postgres.types.rescue`).

Some types have a binary form that cannot be printed without the server (its locale, its catalogs). Their codec
`wants_text`: such a column has to be requested as text, and its binary form is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "KEEP_TEXT",
    "NULL",
    "REASON_BITS",
    "UNCHANGED",
    "BadValueError",
    "Bytes",
    "ColumnCodec",
    "Decode",
    "Find",
    "Ints",
    "Mask",
    "UnsupportedTypeError",
]

NULL = -1
UNCHANGED = -2
REASON_BITS = 4
KEEP_TEXT = "; list the column in `text columns` to store it as text"
"""How a reason ends if the value is valid but its Arrow type cannot hold it."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]
Decode: TypeAlias = Callable[[Bytes, Ints, Ints], pa.Array]
Find: TypeAlias = Callable[[Bytes, Ints, Ints, bool], Mask]
"""`(buf, off, length, is_text)` → which values are valid, but cannot be held by the Arrow type."""


@dataclass(frozen=True)
class ColumnCodec:
    """Decodes a column of one Postgres type to Arrow, from either wire form; equal values give equal arrays."""

    arrow: pa.DataType
    text: Decode
    binary: Decode
    wants_text: bool = False
    """Whether values have to be sent as text; the binary form is rejected."""
    unrepresentable: Find | None = None
    """Finds all values that are valid, but cannot be represented; None if there are no such values."""


class BadValueError(Exception):
    """The first value of a column that is malformed or that its Arrow type cannot hold.

    `row` is its index in the column. `reason` ends with what to do, and never includes the value.
    """

    def __init__(self, row: int, reason: str) -> None:
        """Both arguments are the whole state, so the error pickles."""
        super().__init__(row, reason)
        self.row = row
        self.reason = reason

    def __str__(self) -> str:
        """Return the form for logs."""
        return f"row {self.row}: {self.reason}"

    @classmethod
    def check(cls, verdict: Any, reasons: Sequence[str]) -> None:
        """Raise if the verdict of a kernel blames a row."""
        if verdict >= 0:
            raise cls(int(verdict) >> REASON_BITS, reasons[verdict & ((1 << REASON_BITS) - 1)])


class UnsupportedTypeError(Exception):
    """No Arrow type holds every value of this Postgres type exactly; `reason` says why and what to do."""

    def __init__(self, oid: int, typmod: int, reason: str) -> None:
        """All three arguments are the whole state, so the error pickles."""
        super().__init__(oid, typmod, reason)
        self.oid = oid
        self.typmod = typmod
        self.reason = reason

    def __str__(self) -> str:
        """Return the form for logs."""
        return f"type oid {self.oid} (typmod {self.typmod}): {self.reason}"
