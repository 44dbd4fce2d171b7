"""Binary values as base64 text (RFC 4648, padded), a column at a time.

Three bytes become four characters. All groups of all values are looked up at once, in their place: a value begins at a
group of its own, so the groups of a column lie one after another, and only the last group of a value may lack bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["base64_text"]

_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PADDING = ord("=")


def base64_text(values: pa.BinaryArray) -> pa.StringArray:
    """Return the text of each value; null for null."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
    groups = (lengths + 2) // 3
    offsets = np.concatenate([[0], np.cumsum(groups * 4)])
    if offsets[-1] > np.iinfo(np.int32).max:
        message = f"base64 of {len(values)} values takes {offsets[-1]} bytes, more than one batch holds"
        raise OverflowError(message)
    text = _encoded(*_grouped(values, lengths, groups))
    found = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text))
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string())) if values.null_count else found


def _grouped(
    values: pa.BinaryArray, lengths: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return each group's three bytes as one number, and how many bytes it really has."""
    _, offset_buffer, data_buffer = values.buffers()
    starts = np.frombuffer(offset_buffer, np.int32)[values.offset :][: len(values)].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    within = np.arange(groups.sum()) - np.repeat(np.cumsum(groups) - groups, groups)
    there = np.minimum(np.repeat(lengths, groups) - 3 * within, 3)
    at = np.repeat(starts, groups) + 3 * within
    number = data[at].astype(np.uint32) << 16
    for place, shift in ((1, 8), (2, 0)):
        more = there > place
        number[more] |= data[at[more] + place].astype(np.uint32) << shift
    return number, there


def _encoded(number: npt.NDArray[np.uint32], there: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    text = np.empty((len(number), 4), np.uint8)
    for place in range(4):
        text[:, place] = _LETTERS[(number >> (18 - 6 * place)) & 63]
    text[there < 2, 2] = _PADDING
    text[there < 3, 3] = _PADDING
    return text.reshape(-1)
