"""ENVELOPE UPSERT: applied to any history, the last message of each key is the row of the table."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.model import Image, copied_images, image_schema
from penstock.sinks.upsert import upsert_messages

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.string())])


def images(*changes: tuple[Image, dict[str, Any] | None]) -> pa.RecordBatch:
    schema = image_schema(COLUMNS)
    rows = [
        {"_lsn": 10 * place, "_ordinal": place, "_image": kind, "_xid": 1, "_committed_at": 0, "row": row}
        for place, (kind, row) in enumerate(changes)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def row(a: int, b: str, v: str | None = None) -> dict[str, Any]:
    return {"a": a, "b": b, "v": v}


def pairs(batch: pa.RecordBatch) -> list[tuple[Any, Any]]:
    found = upsert_messages(batch, ["a", "b"], ["v", "a"])
    assert found.keys is not None
    return list(zip(found.keys.to_pylist(), found.values.to_pylist(), strict=True))


def test_each_change() -> None:
    key = {"a": 1, "b": "x"}
    batch = images(
        (Image.COPIED, row(1, "x", "0")),
        (Image.INSERTED, row(1, "x", "1")),
        (Image.UPDATED, row(1, "x", "2")),
        (Image.BEFORE, row(1, "x", "2")),
        (Image.UPDATED, row(1, "x", None)),
        (Image.BEFORE, row(1, "x", "3")),
        (Image.UPDATED, row(2, "x", "4")),
        (Image.BEFORE_KEY, row(2, "x")),
        (Image.UPDATED, row(1, "x", "5")),
        (Image.DELETED_KEY, row(1, "x")),
        (Image.DELETED, row(2, "x", "6")),
    )
    other = {"a": 2, "b": "x"}
    assert pairs(batch) == [
        *((key, {"v": value, "a": 1}) for value in ("0", "1", "2", None)),
        (key, None),
        (other, {"v": "4", "a": 2}),
        (other, None),
        (key, {"v": "5", "a": 1}),
        (key, None),
        (other, None),
    ]
    found = upsert_messages(batch, ["a"], ["a"])
    assert found.positions.tolist() == [0, 10, 20, 40, 50, 60, 70, 80, 90, 100]
    assert found.ordinals.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_rows_of_the_snapshot_have_ordinal_zero() -> None:
    rows = pa.RecordBatch.from_pylist([row(1, "x"), row(2, "y")], schema=COLUMNS)
    assert upsert_messages(copied_images(rows, 7), ["a"], ["v"]).ordinals.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("full", [True, False])
def test_last_messages_are_the_rows_of_the_table(seed: int, full: bool) -> None:
    rng = random.Random(seed)
    table: dict[tuple[int, str], str | None] = {}
    changes: list[tuple[Image, dict[str, Any]]] = []
    for _ in range(100):
        key, value = (rng.randrange(4), rng.choice("xy")), rng.choice([None, "1", "2"])
        if key not in table:
            changes.append((Image.INSERTED, row(*key, value)))
            table[key] = value
        elif rng.random() < 0.4:
            changes.append((Image.DELETED, row(*key, table.pop(key))) if full else (Image.DELETED_KEY, row(*key)))
            table.pop(key, None)
        else:
            new = rng.choice([key, (rng.randrange(4), rng.choice("xy"))])
            new = key if new in table else new
            old = table.pop(key)
            table[new] = value
            changes += [(Image.BEFORE, row(*key, old))] if full else []
            changes += [(Image.BEFORE_KEY, row(*key))] if new != key and not full else []
            changes.append((Image.UPDATED, row(*new, value)))
    found = upsert_messages(images(*changes), ["a", "b"], ["v"])
    assert found.keys is not None
    last = {
        (key["a"], key["b"]): value for key, value in zip(found.keys.to_pylist(), found.values.to_pylist(), strict=True)
    }
    assert {key: value["v"] for key, value in last.items() if value is not None} == table
