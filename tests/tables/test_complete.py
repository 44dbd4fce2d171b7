"""Omitted values are filled in from the range itself, or from the table where it begins."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.seeds import seed

from penstock.errors import TableError
from penstock.model import Image, TableName, TableSchema, image_schema
from penstock.tables.arrow.complete import complete_images

COLUMNS = pa.schema([("id", pa.int64()), ("part", pa.string()), ("a", pa.string()), ("b", pa.int64())])
TABLE = TableSchema(TableName("public", "orders"), COLUMNS, ("id", "part"))
Values = dict[str, Any]


def batch(images: list[tuple[Image, Values | None, list[int] | None]]) -> pa.RecordBatch:
    rows = [
        {
            "_lsn": n,
            "_ordinal": 0,
            "_image": int(kind),
            "_xid": 1,
            "_committed_at": 0,
            "_unchanged": omitted,
            "row": row,
        }
        for n, (kind, row, omitted) in enumerate(images)
    ]
    return pa.RecordBatch.from_pylist(rows, image_schema(COLUMNS))


class History:
    """Random changes of a table, as Postgres sends them (with omitted values) and as they were (with all)."""

    def __init__(self, dice: random.Random, rows: int) -> None:
        self.dice = dice
        self.rows = {self.key(): self.values() for _ in range(rows)}
        self.base = {key: dict(values) for key, values in self.rows.items()}
        self.sent: list[tuple[Image, Values | None, list[int] | None]] = []
        self.whole: list[Values | None] = []

    def key(self) -> tuple[int, str]:
        return self.dice.randrange(6), self.dice.choice("xy")

    def values(self) -> Values:
        return {"a": self.dice.choice(["", "long", None, str(self.dice.random())]), "b": self.dice.randrange(1000)}

    def row(self, key: tuple[int, str]) -> Values:
        return {"id": key[0], "part": key[1], **self.rows[key]}

    def send(self, kind: Image, row: Values | None, omitted: list[int] | None = None) -> None:
        sent = None if row is None else dict(row)
        for index in omitted or ():
            assert sent is not None
            sent[COLUMNS.names[index]] = None
        self.sent.append((kind, sent, omitted))
        self.whole.append(row)

    def change(self) -> None:
        key = self.key()
        if key not in self.rows:
            self.rows[key] = self.values()
            self.send(Image.INSERTED, self.row(key))
        elif self.dice.random() < 0.2:
            self.send(Image.DELETED_KEY, {"id": key[0], "part": key[1], "a": None, "b": None})
            del self.rows[key]
        else:
            self.update(key)

    def update(self, key: tuple[int, str]) -> None:
        new = self.key()
        moves = new not in self.rows and self.dice.random() < 0.3
        if moves:
            self.send(Image.BEFORE_KEY, {"id": key[0], "part": key[1], "a": None, "b": None})
            self.rows[new] = self.rows.pop(key)
        at = new if moves else key
        omitted = [index for index in (2, 3) if self.dice.random() < 0.5]
        changed = self.values()
        self.rows[at] |= {name: changed[name] for name in ("a", "b") if COLUMNS.names.index(name) not in omitted}
        self.send(Image.UPDATED, self.row(at), omitted or None)

    def look_up(self, keys: pa.Table) -> pa.Table:
        found = [(row["id"], row["part"]) for row in keys.to_pylist()]
        rows = [{"id": key[0], "part": key[1], **self.base[key]} for key in dict.fromkeys(found) if key in self.base]
        self.dice.shuffle(rows)
        return pa.Table.from_pylist(rows, COLUMNS)


@pytest.mark.parametrize("number", range(30))
def test_any_history(number: int) -> None:
    history = History(random.Random(seed() + number), rows=8)
    for _ in range(40):
        history.change()
    images = complete_images(batch(history.sent), TABLE, history.look_up)
    assert images.column("row").to_pylist() == history.whole
    assert images.column("_unchanged").null_count == len(images)
    assert images.column("_image").to_pylist() == [int(kind) for kind, _, _ in history.sent]


def test_images_without_omitted_values_need_no_lookup() -> None:
    images = batch([(Image.INSERTED, {"id": 1, "part": "x", "a": "1", "b": 1}, None)])
    assert complete_images(images, TABLE, lambda _: pytest.fail("looked up")) is images


def test_value_in_the_range_needs_no_lookup() -> None:
    row = {"id": 1, "part": "x", "a": "1", "b": 1}
    images = batch([(Image.INSERTED, row, None), (Image.UPDATED, {**row, "a": None, "b": 2}, [2])])
    found = complete_images(images, TABLE, lambda _: pytest.fail("looked up"))
    assert found.column("row").to_pylist() == [row, {**row, "b": 2}]


def test_missing_row_is_an_error_without_values() -> None:
    images = batch([(Image.UPDATED, {"id": 1, "part": "canary", "a": None, "b": 2}, [2])])
    with pytest.raises(TableError, match=r"public\.orders .*missing") as raised:
        complete_images(images, TABLE, lambda _: COLUMNS.empty_table())
    assert "canary" not in str(raised.value)


def test_keyless_table_takes_values_from_the_old_row() -> None:
    row = {"id": 1, "part": "x", "a": "1", "b": 1}
    keyless = TableSchema(TABLE.table, COLUMNS, ())
    images = batch([(Image.BEFORE, row, None), (Image.UPDATED, {**row, "a": None, "b": 2}, [2])])
    found = complete_images(images, keyless, lambda _: pytest.fail("looked up"))
    assert found.column("row").to_pylist() == [row, {**row, "b": 2}]
