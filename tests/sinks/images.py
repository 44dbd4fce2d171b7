"""Images of changes for tests of envelopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.model import Image, image_schema


class Change(NamedTuple):
    """An image of a change, and its place in the history."""

    position: int
    ordinal: int
    kind: Image
    row: Mapping[str, Any] | None


def images_of(columns: pa.Schema, changes: Iterable[Change]) -> pa.RecordBatch:
    """Return images; the transaction id and the commit time follow from the position."""
    rows = [
        {
            **{"_lsn": one.position, "_ordinal": one.ordinal, "_image": one.kind},
            **{"_xid": one.position % 1000, "_committed_at": one.position, "row": one.row},
        }
        for one in changes
    ]
    return pa.RecordBatch.from_pylist(rows, schema=image_schema(columns))
