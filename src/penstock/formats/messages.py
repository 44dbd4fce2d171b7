"""A column of messages as kernels see it: the start and end address of each message, and its error record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.decode_errors import CODE, A, ErrorCode, ErrorRecords, no_errors
from penstock.formats.jit import Ints

__all__ = ["Messages", "messages_of"]


@dataclass
class Messages:
    """The messages of one batch; `start` advances when a header before a message has been read."""

    array: pa.Array
    """The column: this reference keeps its bytes in place."""
    first: int
    """The address of the first message, and the number of bytes of all messages."""
    extent: int
    start: Ints
    """The start and end address of each message."""
    end: Ints
    sizes: Ints
    errors: ErrorRecords

    def __len__(self) -> int:
        return len(self.start)

    @property
    def longest(self) -> int:
        """The size of the largest message."""
        return int(self.sizes.max(initial=0))

    def reject(self, which: Ints, problem: ErrorCode, reason: int = 0) -> None:
        """Set the same error for several messages."""
        self.errors[which, CODE] = int(problem)
        self.errors[which, A] = reason


def messages_of(array: pa.Array | pa.ChunkedArray) -> Messages:
    """Return the messages of a binary column; a null is an absent message."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    places = places if len(array) else np.zeros(1, np.int64)
    errors = no_errors(len(array))
    if array.null_count:
        errors[:, CODE] = np.where(pc.is_null(array).to_numpy(zero_copy_only=False), int(ErrorCode.ABSENT), 0)
    sizes = np.diff(places)
    places += data.address if data is not None else 0
    return Messages(array, int(places[0]), int(places[-1] - places[0]), places[:-1].copy(), places[1:], sizes, errors)
