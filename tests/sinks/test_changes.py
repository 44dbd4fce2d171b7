"""ENVELOPE CHANGES: one message for each change, with the rows and the key that it has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.sinks.images import Change, images_of

from penstock.model import Image, copied_images
from penstock.sinks.changes import changes_messages

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("secret", pa.string())])
POSITION = (0x16 << 32) + 0xB374D848


def row(number: int, v: str | None = None) -> dict[str, Any]:
    return {"id": number, "v": v, "secret": "s"}


def test_each_change() -> None:
    history = [
        Change(POSITION, 0, Image.INSERTED, row(1, "a")),
        Change(POSITION, 1, Image.UPDATED, row(1, "b")),
        Change(POSITION, 2, Image.BEFORE, row(1, "b")),
        Change(POSITION, 2, Image.UPDATED, row(2, "c")),
        Change(POSITION, 3, Image.BEFORE_KEY, {"id": 2}),
        Change(POSITION, 3, Image.UPDATED, row(3, "d")),
        Change(POSITION, 4, Image.DELETED_KEY, {"id": 3}),
        Change(POSITION, 5, Image.DELETED, row(4, "e")),
        Change(POSITION, 6, Image.TRUNCATE, None),
    ]
    found = changes_messages(images_of(COLUMNS, history), ["id"], ["v", "id"], "public.orders")
    assert found.keys is not None
    assert found.positions.tolist() == [POSITION] * 7
    assert found.ordinals.tolist() == list(range(7))
    assert found.keys.to_pylist() == [*({"id": n} for n in (1, 1, 2, 3, 3, 4)), None]
    values = found.values.to_pylist()
    assert [(one["op"], one["before"], one["after"]) for one in values] == [
        ("insert", None, {"v": "a", "id": 1}),
        ("update", None, {"v": "b", "id": 1}),
        ("update", {"v": "b", "id": 1}, {"v": "c", "id": 2}),
        ("update", {"v": None, "id": 2}, {"v": "d", "id": 3}),
        ("delete", {"v": None, "id": 3}, None),
        ("delete", {"v": "e", "id": 4}, None),
        ("truncate", None, None),
    ]
    assert {(one["table"], one["position"], one["xid"]) for one in values} == {
        ("public.orders", "16/B374D848", POSITION % 1000)
    }
    assert values[0]["committed_at"].tzinfo is not None
    found.values.validate(full=True)
    found.keys.validate(full=True)


def test_rows_of_the_snapshot_belong_to_no_transaction() -> None:
    rows = pa.RecordBatch.from_pylist([row(1, "a")], schema=COLUMNS)
    found = changes_messages(copied_images(rows, 7), ["id"], ["id"], "public.orders")
    [value] = found.values.to_pylist()
    head = {"op": "snapshot", "table": "public.orders", "position": "0/7"}
    rest: dict[str, Any] = {"ordinal": None, "xid": None, "committed_at": None, "before": None, "after": {"id": 1}}
    assert value == {**head, **rest}
    assert found.ordinals.tolist() == [0]


def test_commit_time_is_in_microseconds() -> None:
    [value] = changes_messages(
        images_of(COLUMNS, [Change(1_000_001, 0, Image.INSERTED, row(1))]), [], ["id"], "t.t"
    ).values.to_pylist()
    assert value["committed_at"] == datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("key", [[], ["id"]])
def test_keyless_tables_and_no_images(key: list[str]) -> None:
    found = changes_messages(images_of(COLUMNS, []), key, ["v"], "public.orders")
    assert len(found) == 0
    assert (found.keys is None) == (not key)
