"""The schemas that messages of a batch were written with, each looked up once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from penstock.formats.compiling import Ints
from penstock.formats.framing import read_ids
from penstock.formats.memory import address
from penstock.formats.messages import Messages, of_array
from penstock.formats.problems import CODE, A, Problem
from penstock.formats.registry import RegisteredSchema

__all__ = ["Writers", "refuse", "schema_ids"]

Writers = Mapping[int, RegisteredSchema | None]
"""What ids mean; None for one that the registry does not know."""


def schema_ids(array: pa.Array | pa.ChunkedArray) -> list[int]:
    """Return the different schema ids of a batch of framed messages."""
    messages = of_array(array)
    ids = read_ids(messages.start, messages.end, address(messages.faults))
    return [int(one) for one in np.unique(ids) if one >= 0]


def refuse(messages: Messages, which: Ints, problem: Problem, reason: int = 0) -> None:
    """Note one problem for many messages."""
    messages.faults[which, CODE] = int(problem)
    messages.faults[which, A] = reason
