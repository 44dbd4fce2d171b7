"""Decimals as bytes, as in Avro and Connect: the unscaled number in two's complement, the highest byte first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DefiniteError

__all__ = ["decimal_bytes", "fixed_decimal_bytes"]

_WIDTH = 16


def decimal_bytes(values: pa.Decimal128Array) -> pa.LargeBinaryArray:
    """Return the fewest bytes that have the sign of each number."""
    data, needed = _numbers(values)
    kept = np.arange(_WIDTH) >= _WIDTH - needed[:, None]
    offsets = np.concatenate([[0], np.cumsum(needed)])
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data[kept]))]
    )


def fixed_decimal_bytes(values: pa.Decimal128Array, size: int) -> pa.LargeBinaryArray:
    """Return each number in `size` bytes, or raise `DefiniteError` if one does not fit."""
    data, needed = _numbers(values)
    if np.any(needed > size):
        message = f"a decimal does not fit into {size} bytes"
        raise DefiniteError(message, "Register a schema with more bytes, or with type bytes.")
    sign = np.where(data[:, :1] >> 7, np.uint8(255), np.uint8(0))
    wide = np.concatenate([np.repeat(sign, max(0, size - _WIDTH), axis=1), data[:, max(0, _WIDTH - size) :]], axis=1)
    offsets = np.arange(len(values) + 1, dtype=np.int64) * size
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(wide))]
    )


def _numbers(values: pa.Decimal128Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the 16 bytes of each number, the highest first, and how many of them are needed."""
    first, end = values.offset * _WIDTH, (values.offset + len(values)) * _WIDTH  # the buffer may be longer
    held = np.frombuffer(values.buffers()[1], np.uint8)[first:end].reshape(-1, _WIDTH)
    data = np.ascontiguousarray(held[:, ::-1])
    sign = np.where(data[:, 0] >> 7, np.uint8(255), np.uint8(0))
    differs = data != sign[:, None]
    leading = np.where(differs.any(axis=1), differs.argmax(axis=1), _WIDTH - 1)
    spoiled = (data[np.arange(len(data)), leading] >> 7) != (sign >> 7)
    return data, np.minimum(_WIDTH - leading + spoiled, _WIDTH)
