"""The texts of rescued values follow their values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.changelog.rescued_texts import renamed, text_of, with_texts, without_columns
from penstock.changelog.user_rows import updates
from penstock.model import Image, TableName, TableSchema, image_schema, rescued_field, rescued_type
from penstock.sinks.debezium import DebeziumTable, _converted
from penstock.tables.arrow.complete import complete_images

Texts = list[tuple[str, str]] | None
MAPS: list[Texts] = [None, [("a", "1")], [("a", "2"), ("b", "3")], None]
COLUMNS = pa.schema([("id", pa.int64()), ("days", pa.list_(pa.int32())), ("n", pa.int64()), rescued_field()])
TABLE = TableSchema(TableName("public", "t"), COLUMNS, ("id",))


def maps(values: list[Texts]) -> pa.Array:
    return pa.array(values, rescued_type())


@pytest.mark.parametrize("skipped", [0, 1, 3])
def test_slices_of_maps(skipped: int) -> None:
    array, expected = maps(MAPS).slice(skipped), MAPS[skipped:]
    assert text_of(array, "a").to_pylist() == [dict(each or ()).get("a") for each in expected]
    added = pa.array(["x", None, None, "y"]).slice(skipped)
    found = with_texts(array, {"c": added, "d": pa.nulls(len(array), pa.string())})
    found.validate(full=True)
    texts = [
        [*(each or ()), ("c", text)] if text else each for each, text in zip(expected, added.to_pylist(), strict=True)
    ]
    assert found.to_pylist() == texts
    assert with_texts(array, {}) is array
    assert without_columns(array, ["a"]).to_pylist() == [None, None, [("b", "3")], None][skipped:]
    assert (
        renamed(array, {"a": "z", "b": "b"}).to_pylist()
        == [None, [("z", "1")], [("b", "3"), ("z", "2")], None][skipped:]
    )


def images(*rows: tuple[Image, dict[str, Any], list[int] | None]) -> pa.RecordBatch:
    fixed = {"_ordinal": 0, "_xid": 1, "_committed_at": 0}
    listed = [
        {**fixed, "_lsn": n, "_image": int(kind), "_unchanged": u, "row": row} for n, (kind, row, u) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(listed, image_schema(COLUMNS))


def rescued(batch: pa.RecordBatch) -> list[Texts]:
    return [row["_rescued"] for row in batch.column("row").to_pylist()]


def test_images_are_completed_with_texts() -> None:
    omitted = [1]
    batch = images(
        (Image.UPDATED, {"id": 1, "n": 1}, omitted),
        (Image.UPDATED, {"id": 1, "n": 2, "_rescued": [("days", "{{2}}")]}, None),
        (Image.UPDATED, {"id": 1, "n": 3}, omitted),
        (Image.UPDATED, {"id": 1, "days": [1], "n": 4}, None),
        (Image.UPDATED, {"id": 1, "n": 5}, omitted),
        (Image.UPDATED, {"id": 2, "n": 6}, omitted),
    )
    base = pa.Table.from_pylist(
        [{"id": 1, "_rescued": [("days", "{{1}}"), ("n", "?")]}, {"id": 2, "days": [9]}], COLUMNS
    )
    found = complete_images(batch, TABLE, lambda _: base)
    first, second = [("days", "{{1}}")], [("days", "{{2}}")]
    assert rescued(found) == [first, second, second, None, None, None]
    assert [row["days"] for row in found.column("row").to_pylist()] == [None, None, None, [1], [1], [9]]


OLD = (Image.BEFORE, {"id": 1, "_rescued": [("days", "{{1}}"), ("n", "x")]}, None)


def test_whole_rows_have_the_texts_of_the_old_row() -> None:
    batch = images(
        OLD, (Image.UPDATED, {"id": 1, "n": 3}, [1]), OLD, (Image.UPDATED, {"id": 1, "days": [1], "n": 3}, None)
    )
    found = updates(batch, TABLE.table).column("_rescued").to_pylist()
    assert found == [OLD[1]["_rescued"], [("days", "{{1}}")], OLD[1]["_rescued"], None]


def test_debezium_has_the_text_of_the_old_row_or_its_placeholder() -> None:
    table = DebeziumTable(TABLE, ("id",), "shop.public.t", "shop", "shop")
    batch = images(OLD, (Image.UPDATED, {"id": 1, "n": 3}, [1]), (Image.UPDATED, {"id": 1, "n": 4}, [1]))
    kinds = batch.column("_image").to_numpy()
    found = [row["_rescued"] for row in _converted(batch, kinds, table).to_pylist()]
    assert found == [OLD[1]["_rescued"], [("days", "{{1}}")], [("days", "__debezium_unavailable_value")]]
