"""The writer schemas of a batch of messages, each looked up once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from penstock.formats.decode_errors import CODE, A, ErrorCode
from penstock.formats.framing import read_ids
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.messages import Messages, messages_of
from penstock.formats.registry import RegisteredSchema

__all__ = ["WriterSchemas", "reject", "schema_ids"]

WriterSchemas = Mapping[int, RegisteredSchema | None]
"""Schemas by id; None for an id that the registry does not have."""


def schema_ids(array: pa.Array | pa.ChunkedArray) -> list[int]:
    """Return the distinct schema ids of a batch of framed messages."""
    messages = messages_of(array)
    ids = read_ids(messages.start, messages.end, address(messages.errors))
    return [int(one) for one in np.unique(ids) if one >= 0]


def reject(messages: Messages, which: Ints, problem: ErrorCode, reason: int = 0) -> None:
    """Set the same error for several messages."""
    messages.errors[which, CODE] = int(problem)
    messages.errors[which, A] = reason
