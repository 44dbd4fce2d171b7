"""Decode base64 for a whole Arrow array at a time; Arrow has no function for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["decode_base64"]

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD, _BAD = 64, 255
_SIX_BITS = np.full(256, _BAD, np.uint8)
_SIX_BITS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
_SIX_BITS[ord("=")] = _PAD


def decode_base64(texts: pa.StringArray) -> pa.BinaryArray:
    """Return the decoded bytes; null where a text is null, or not valid base64 with padding.

    All texts whose length is a multiple of four form one sequence of groups of four characters. Each group decodes to
    three bytes; the bytes that correspond to padding are removed.
    """
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    whole = texts.is_valid().to_numpy(zero_copy_only=False) & (lengths % 4 == 0)
    groups_of_text = np.where(whole, lengths, 0) // 4
    groups = _SIX_BITS[_characters(texts, whole)].reshape(-1, 4)
    pads = np.minimum(np.count_nonzero(groups == _PAD, axis=1), 3)
    text_of_group = np.repeat(np.arange(len(texts)), groups_of_text)
    valid = whole.copy()
    valid[text_of_group[~_is_group(groups, pads, np.cumsum(groups_of_text))]] = False
    sizes = 3 * groups_of_text - np.bincount(text_of_group, pads, len(texts)).astype(np.int64)
    kept = np.arange(3) < 3 - pads[:, None]
    return _binary(valid, np.where(whole, sizes, 0), _bytes(groups)[kept])


def _characters(texts: pa.StringArray, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    chosen = texts.filter(pa.array(wanted))
    offsets = np.frombuffer(chosen.buffers()[1], np.int32)[chosen.offset : chosen.offset + len(chosen) + 1]
    held = np.frombuffer(chosen.buffers()[2] or b"", np.uint8)
    return held[offsets[0] : offsets[-1]] if len(offsets) else held[:0]


def _is_group(
    groups: npt.NDArray[np.uint8], pads: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which groups are well-formed: padding occurs only at the end of a text, with at most two characters."""
    last = np.zeros(len(groups) + 1, np.bool_)
    last[ends] = True
    placed = (pads == 0) | (last[1:] & (pads <= 2) & (groups[:, 3] == _PAD) & ((pads == 1) | (groups[:, 2] == _PAD)))
    return np.asarray(placed & ~(groups == _BAD).any(axis=1))


def _bytes(groups: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    bits = groups & 63
    decoded = np.empty((len(groups), 3), np.uint8)
    decoded[:, 0] = bits[:, 0] << 2 | bits[:, 1] >> 4
    decoded[:, 1] = bits[:, 1] << 4 | bits[:, 2] >> 2
    decoded[:, 2] = bits[:, 2] << 6 | bits[:, 3]
    return decoded


def _binary(valid: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(valid), [bitmap, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    )
