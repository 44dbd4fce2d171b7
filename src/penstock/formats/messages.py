"""A column of messages as kernels see it: where each message begins and ends in memory, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.compiling import Ints
from penstock.formats.problems import CODE, Faults, Problem, no_faults

__all__ = ["Messages", "of_array"]


@dataclass
class Messages:
    """Messages of one batch; `start` moves on when what stands before a message has been read."""

    array: pa.Array
    """The column: while it is held, its bytes stay where they are."""
    first: int
    """Where the bytes of all messages begin, and how many they are."""
    extent: int
    start: Ints
    """Where each message begins and ends: addresses."""
    end: Ints
    sizes: Ints
    faults: Faults

    def __len__(self) -> int:
        return len(self.start)

    @property
    def longest(self) -> int:
        """The size of the largest message."""
        return int(self.sizes.max(initial=0))


def of_array(array: pa.Array | pa.ChunkedArray) -> Messages:
    """Take a binary column; a null is a message that is not there."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    places = places if len(array) else np.zeros(1, np.int64)
    faults = no_faults(len(array))
    if array.null_count:
        faults[:, CODE] = np.where(pc.is_null(array).to_numpy(zero_copy_only=False), int(Problem.ABSENT), 0)
    sizes = np.diff(places)
    places += data.address if data is not None else 0
    return Messages(array, int(places[0]), int(places[-1] - places[0]), places[:-1].copy(), places[1:], sizes, faults)
