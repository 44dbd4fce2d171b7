"""Images become changes: one row per change, with the row before and after."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from tests.changelog.chunks import ORDERS, Row, chunk, inserted

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.user_rows import changes, changes_schema
from penstock.model import Image
from penstock.positions import Lsn

HIGH = 0x16B374D848


def images(rows: list[Row], after: int = 0) -> pa.RecordBatch:
    """Images as the log returns them, encoded and decoded."""
    stored = StoredChunk.pack(chunk(ORDERS, rows))
    return stored.unpack(ORDERS.columns, Lsn(after), Lsn(2**62))


def change_tuples(rows: list[Row], after: int = 0) -> list[tuple[Any, ...]]:
    result = changes(images(rows, after))
    result.validate(full=True)
    assert result.schema == changes_schema(ORDERS.columns)
    found = []
    for row in result.to_pylist():
        old, new = (None if row[side] is None else tuple(row[side].values()) for side in ("before", "after"))
        found.append((row["_op"], row["_lsn"], row["_ordinal"], old, new, row["_unchanged"]))
    return found


def test_every_kind_of_change() -> None:
    rows = [
        Row(HIGH, 0, Image.INSERTED, (1, "a")),
        Row(HIGH, 1, Image.UPDATED, (1, "b")),
        Row(HIGH, 2, Image.BEFORE, (1, "b")),
        Row(HIGH, 2, Image.UPDATED, (1, "c")),
        Row(HIGH, 3, Image.BEFORE_KEY, (1, None)),
        Row(HIGH, 3, Image.UPDATED, (2, "c")),
        Row(HIGH, 4, Image.UPDATED, (2, None), (1,)),
        Row(HIGH, 5, Image.BEFORE_KEY, (2, None)),
        Row(HIGH, 5, Image.UPDATED, (3, None), (1,)),
        Row(HIGH + 1, 0, Image.DELETED_KEY, (3, None)),
        Row(HIGH + 1, 1, Image.DELETED, (4, "d")),
        Row(HIGH + 2, 0, Image.TRUNCATE, None),
    ]
    first, second, third = "16/B374D848", "16/B374D849", "16/B374D84A"
    assert change_tuples(rows) == [
        ("insert", first, 0, None, (1, "a"), None),
        ("update", first, 1, None, (1, "b"), None),
        ("update", first, 2, (1, "b"), (1, "c"), None),
        ("update", first, 3, (1, None), (2, "c"), None),
        ("update", first, 4, None, (2, None), ["name"]),
        ("update", first, 5, (2, None), (3, None), ["name"]),
        ("delete", second, 0, (3, None), None, None),
        ("delete", second, 1, (4, "d"), None, None),
        ("truncate", third, 0, None, None, None),
    ]


def test_truncated_batch_starts_with_its_first_change() -> None:
    rows = [
        Row(20, 0, Image.BEFORE, (1, "a")),
        Row(20, 0, Image.UPDATED, (1, None), (1,)),
        Row(30, 0, Image.UPDATED, (5, None), (1,)),
        Row(30, 1, Image.BEFORE_KEY, (6, None)),
        Row(30, 1, Image.UPDATED, (7, "z")),
    ]
    assert change_tuples(rows, after=20) == [
        ("update", "0/1E", 0, None, (5, None), ["name"]),
        ("update", "0/1E", 1, (6, None), (7, "z"), None),
    ]


def test_no_images_give_no_changes() -> None:
    assert change_tuples([inserted(20)], after=20) == []


def test_transaction_columns_are_included() -> None:
    result = changes(images([inserted(20), inserted(30)])).to_pylist()
    assert [(row["_xid"], row["_committed_at"].microsecond) for row in result] == [(21, 20), (31, 30)]
