"""Positions as Postgres writes them (``16/B374D848``), a column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["lsn_text"]

_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS = np.arange(28, -4, -4, dtype=np.int64)


def lsn_text(lsn: pa.Array) -> pa.Array:
    """Write LSNs as text; rows of one transaction share one, so each is written once."""
    encoded = lsn.dictionary_encode()
    return pc.take(_written(encoded.dictionary.to_numpy()), encoded.indices)


def _written(lsns: np.ndarray) -> pa.StringArray:
    """Write both halves in hexadecimal, without leading zeros, and a slash between them."""
    high, high_kept = _hexadecimal(lsns >> 32)
    low, low_kept = _hexadecimal(lsns & 0xFFFFFFFF)
    slash = np.full((len(lsns), 1), ord("/"), np.uint8)
    kept = np.concatenate([high_kept, np.ones((len(lsns), 1), np.bool_), low_kept], axis=1)
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    text = np.concatenate([high, slash, low], axis=1)[kept]
    return pa.StringArray.from_buffers(len(lsns), pa.py_buffer(offsets), pa.py_buffer(text))


def _hexadecimal(halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eight digits for each, and which of them to keep: from the first that is not zero, and the last."""
    digits = (halves[:, None] >> _SHIFTS) & 0xF
    kept = np.logical_or.accumulate(digits != 0, axis=1)
    kept[:, -1] = True
    return _DIGITS[digits], kept
