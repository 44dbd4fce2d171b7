"""Write texts as JSON strings, a column at a time: with quotes, and escapes where they are needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.jit import Ints, compiled

__all__ = ["quoted"]

_Bytes = npt.NDArray[np.uint8]

_LETTERS = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
"""The characters that have a short escape, and its second character."""
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


def _escape_table() -> _Bytes:
    r"""Return for each byte 0, the second character of its short escape, or 1: it is written as ``\u00xx``."""
    table = np.zeros(256, np.uint8)
    table[:32] = 1
    for code, letter in _LETTERS.items():
        table[code] = ord(letter)
    return table


_ESCAPES = _escape_table()


def quoted(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return each text as a JSON string; null where a text is null."""
    if not len(texts):
        return texts
    begins = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    offsets = _quoted_offsets(data, begins, _ESCAPES)
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_quoted(data, begins, _ESCAPES, _HEXADECIMAL, offsets, out)
    valid = None
    if texts.null_count:
        valid = pa.py_buffer(np.packbits(texts.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.large_string(), len(texts), [valid, pa.py_buffer(offsets), pa.py_buffer(out)])


@compiled
def _quoted_offsets(data: _Bytes, begins: Ints, escapes: _Bytes) -> Ints:
    """Return where each string begins in the output, and where the last one ends."""
    offsets = np.empty(len(begins), np.int64)
    offsets[0] = 0
    for index in range(len(begins) - 1):
        size = begins[index + 1] - begins[index] + 2
        for place in range(begins[index], begins[index + 1]):
            escape = escapes[data[place]]
            size += 0 if escape == 0 else 5 if escape == 1 else 1
        offsets[index + 1] = offsets[index] + size
    return offsets


@compiled
def _write_quoted(data: _Bytes, begins: Ints, escapes: _Bytes, hexadecimal: _Bytes, offsets: Ints, out: _Bytes) -> None:
    for index in range(len(begins) - 1):
        at = offsets[index]
        out[at] = 34
        at += 1
        for place in range(begins[index], begins[index + 1]):
            value = data[place]
            escape = escapes[value]
            if escape == 0:
                out[at] = value
                at += 1
                continue
            out[at] = 92
            if escape != 1:
                out[at + 1] = escape
                at += 2
                continue
            out[at + 1], out[at + 2], out[at + 3] = 117, 48, 48
            out[at + 4], out[at + 5] = hexadecimal[value >> 4], hexadecimal[value & 15]
            at += 6
        out[at] = 34
