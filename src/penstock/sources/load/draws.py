"""Reproducible pseudo-random numbers: a hash (splitmix64) of the seed, a name and an index."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["Draws"]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Draws:
    """Named streams of pseudo-random numbers, with random access by index."""

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed)

    def below(self, name: str, numbers: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
        """Return one value in the range from 0 to `limit` - 1 for each index."""
        with np.errstate(over="ignore"):
            stream = _mixed(np.array([self._seed ^ np.uint64(zlib.crc32(name.encode()) << 16)]))
            drawn = _mixed(numbers.astype(np.uint64) * _GAMMA + stream)
        return (drawn % np.uint64(limit)).astype(np.int64)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
