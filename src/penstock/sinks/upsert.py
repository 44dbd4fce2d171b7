"""ENVELOPE UPSERT: the row of each key as its last message; a tombstone if the row was deleted.

| change | messages |
|---|---|
| INSERT, a row of the snapshot | the row |
| UPDATE | the row; before it a tombstone of the old key, if the key changed |
| DELETE | a tombstone |

A topic with ``cleanup.policy=compact`` keeps the last message of each key, and so the rows of the table. TRUNCATE
is not an image here: `penstock.sinks.truncates` replaces it by the deletes of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.model import Image
from penstock.sinks.messages import SinkMessages, changed_keys, image_kinds, image_ordinals, some_columns

__all__ = ["upsert_messages"]

_ROWS = (Image.UPDATED, Image.INSERTED, Image.COPIED)
_REMOVED = (Image.DELETED, Image.DELETED_KEY, Image.BEFORE_KEY)


def upsert_messages(images: pa.RecordBatch, key: Sequence[str], columns: Sequence[str]) -> SinkMessages:
    """Return the messages of images of whole changes, with these columns as their keys and values."""
    kinds, rows = image_kinds(images), images.column("row")
    written = np.isin(kinds, _ROWS)
    old = np.flatnonzero(kinds == Image.BEFORE)
    chosen = written | np.isin(kinds, _REMOVED)
    chosen[old] = changed_keys(rows, key, old)
    numbers = np.flatnonzero(chosen)
    taken = rows.take(pa.array(numbers))
    values = some_columns(taken, columns)
    values = pa.StructArray.from_arrays(
        [values.field(place) for place in range(len(columns))],
        fields=list(values.type),
        mask=pa.array(~written[numbers]),
    )
    positions, ordinals = images.column("_lsn").to_numpy()[numbers], image_ordinals(images)[numbers]
    return SinkMessages(positions, ordinals, values, some_columns(taken, key))
