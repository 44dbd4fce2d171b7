"""Encode and decode base64 for a whole Arrow array at a time; Arrow has no function for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["decode_base64", "encode_base64"]

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD, _BAD = 64, 255
_SIX_BITS = np.full(256, _BAD, np.uint8)
_SIX_BITS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
_SIX_BITS[ord("=")] = _PAD
_CHARACTERS = np.frombuffer(_ALPHABET + b"=", np.uint8)


def encode_base64(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the texts of values, with padding; null where a value is null.

    Each value is extended with zeros to groups of three bytes. Each group becomes four characters; those of the zeros
    alone are replaced by padding.
    """
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    groups = -(-sizes // 3)
    ends = np.cumsum(groups)
    begins, given = 3 * (ends - groups), np.cumsum(sizes) - sizes
    data = np.zeros(3 * int(groups.sum()), np.uint8)
    data[np.arange(int(sizes.sum())) + np.repeat(begins - given, sizes)] = _content(values)
    bits = _six_bits(data.reshape(-1, 3))
    padding = 3 * groups - sizes
    for characters, place in ((1, 3), (2, 2)):
        bits[(ends - 1)[padding >= characters], place] = _PAD
    offsets = np.concatenate([[0], 4 * ends])
    bitmap = pa.py_buffer(np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes())
    parts = [bitmap, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(_CHARACTERS[bits].reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), parts)


def _content(values: pa.LargeBinaryArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values that are not null, one after the other."""
    present = values.drop_null()
    offsets = np.frombuffer(present.buffers()[1], np.int64)[present.offset : present.offset + len(present) + 1]
    held = np.frombuffer(present.buffers()[2] or b"", np.uint8)
    return held[offsets[0] : offsets[-1]] if len(offsets) else held[:0]


def _six_bits(groups: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    bits = np.empty((len(groups), 4), np.uint8)
    bits[:, 0] = groups[:, 0] >> 2
    bits[:, 1] = (groups[:, 0] & 3) << 4 | groups[:, 1] >> 4
    bits[:, 2] = (groups[:, 1] & 15) << 2 | groups[:, 2] >> 6
    bits[:, 3] = groups[:, 2] & 63
    return bits


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
