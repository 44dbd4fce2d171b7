"""A column of messages as kernels see it: all bytes, where each message begins and ends, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.problems import CODE, Faults, Problem, no_faults
from penstock.formats.sink import Bytes, Ints

__all__ = ["Messages", "of_array"]


@dataclass
class Messages:
    """Messages of one batch; `start` moves on when what stands before a message has been read."""

    data: Bytes
    start: Ints
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
    wide = pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    width = np.int64 if wide else np.int32
    places = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    faults = no_faults(len(array))
    if array.null_count:
        faults[:, CODE] = np.where(pc.is_null(array).to_numpy(zero_copy_only=False), int(Problem.ABSENT), 0)
    whole = np.frombuffer(data if data is not None and data.size else b"\0", np.uint8)
    # As constants of plans are: kernels are compiled for one type of array, and recursive ones must be (see `inner`).
    whole.flags.writeable = False
    return Messages(whole, places[:-1].copy(), places[1:].copy(), np.diff(places), faults)
