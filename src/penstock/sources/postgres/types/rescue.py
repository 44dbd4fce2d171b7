"""Decode columns, and keep the text of values that their types cannot hold (the option `on unrepresentable`).

::

    (buf, off, length) ── decode ──▶ array                                            usual: nothing else happens
                            └─ BadValueError ─▶ find all such values ─▶ decode the others, with null in their place
                                                                    └─▶ print these ──▶ texts

    texts of all columns ── rescued_column ──▶ map<string, string>: column → text; null for a row without such values

Values are decoded as without this option. Only if a column of a batch contains a value that its type cannot hold are
its values examined, and only those values printed. Malformed values are errors as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import rescued_type
from penstock.sources.postgres.types.codec import KEEP_TEXT, NULL, BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes
from penstock.sources.postgres.types.postgres_type import PostgresType
from penstock.sources.postgres.types.text_printers import printer_for

__all__ = ["RescuedTexts", "decode_and_rescue", "rescued_column"]


@dataclass(frozen=True)
class RescuedTexts:
    """The values of one column that its type cannot hold: their rows, in order, and their texts."""

    column: str
    rows: npt.NDArray[np.int64]
    texts: pa.StringArray


def decode_and_rescue(
    name: str, kind: PostgresType, codec: ColumnCodec, buf: Bytes, off: Ints, length: Ints, *, is_text: bool
) -> tuple[pa.Array, RescuedTexts | None]:
    """Decode a column; values that its type cannot hold are null in the array, and returned as text.

    Raise `BadValueError` for other bad values, and for those that only the server can print.
    """
    decode = codec.text if is_text else codec.binary
    try:
        return decode(buf, off, length), None
    except BadValueError as bad:
        if codec.unrepresentable is None:
            raise
        found = codec.unrepresentable(buf, off, length, is_text)
        rows = np.flatnonzero(found)
        if not len(rows):
            raise
        print_all = printer_for(kind)
        if not is_text and print_all is None:
            reason = f"{bad.reason.removesuffix(KEEP_TEXT)}, and whose text only the server can print{KEEP_TEXT}"
            raise BadValueError(bad.row, reason) from bad
    array = decode(buf, off, np.where(found, np.int32(NULL), length))
    if is_text or print_all is None:
        return array, RescuedTexts(name, rows, gather_bytes(pa.string(), buf, off[rows], length[rows]))
    try:
        return array, RescuedTexts(name, rows, print_all(buf, off[rows], length[rows]))
    except BadValueError as bad:
        raise BadValueError(int(rows[0]), bad.reason) from bad


def rescued_column(rows: int, rescued: Sequence[RescuedTexts]) -> pa.Array:
    """Return the map of each row from columns to texts, sorted by the names of columns; null for rows without any."""
    kind = rescued_type()
    if not rescued:
        return pa.nulls(rows, kind)
    columns = sorted(rescued, key=lambda each: each.column.encode())
    of_row = np.concatenate([each.rows for each in columns])
    names = np.repeat(np.arange(len(columns)), [len(each.rows) for each in columns])
    order = np.argsort(of_row, kind="stable")
    counts = np.bincount(of_row, minlength=rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    keys = pa.array([each.column for each in columns], pa.string()).take(pa.array(names[order]))
    texts = pa.concat_arrays([each.texts for each in columns]).take(pa.array(order))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, texts, type=kind, mask=pa.array(counts == 0))
