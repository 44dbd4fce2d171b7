"""Option where: the changes of a table, reduced to the rows that pass, are a history of these rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sinks.images import Change, images_of

from penstock.model import Image, TableName, TableSchema, copied_images
from penstock.sinks.changes import changes_messages
from penstock.sinks.row_filter import RowFilter
from penstock.sinks.upsert import upsert_messages

COLUMNS = pa.schema([("id", pa.int64()), ("status", pa.string()), ("note", pa.string())])
KEYED, KEYLESS = (TableSchema(TableName("public", "orders"), COLUMNS, key) for key in (("id",), ()))
NAMES = COLUMNS.names
Row = dict[str, Any]
WHERE = "status <> 'draft'"
BY_KEY = "id > 2"
ROWS = st.fixed_dictionaries(
    {"id": st.integers(1, 4), "status": st.sampled_from(["draft", "paid", None]), "note": st.sampled_from(["a", "b"])}
)
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "update", "delete", "truncate"]), ROWS, ROWS), max_size=20)


def passes(where: str, row: Row) -> bool:
    return row["id"] > 2 if where == BY_KEY else row["status"] not in ("draft", None)


def history(table: dict[int, Row], steps: list[tuple[str, Row, Row]], *, full: bool) -> Iterator[list[Change]]:
    """Apply steps to a table, as far as they are possible; yield the images of each, as Postgres sends them."""
    for position, (step, old, new) in enumerate(steps, 1):
        here = table.get(old["id"])
        if step == "insert" and new["id"] not in table:
            table[new["id"]] = new
            yield [Change(position, 0, Image.INSERTED, new)]
        elif step == "update" and here is not None and (new["id"] == old["id"] or new["id"] not in table):
            del table[old["id"]]
            table[new["id"]] = new
            before = [Change(position, 0, Image.BEFORE, here)] if full else []
            if not full and new["id"] != old["id"]:
                before = [Change(position, 0, Image.BEFORE_KEY, {"id": here["id"]})]
            yield [*before, Change(position, 0, Image.UPDATED, new)]
        elif step == "delete" and here is not None:
            del table[old["id"]]
            kind, row = (Image.DELETED, here) if full else (Image.DELETED_KEY, {"id": here["id"]})
            yield [Change(position, 0, kind, row)]
        elif step == "truncate":  # as `penstock.sinks.truncates` replaces it
            yield [Change(position, each, Image.DELETED, row) for each, row in enumerate(table.values())]
            table.clear()


def filtered(where: str, steps: list[tuple[str, Row, Row]], *, full: bool) -> tuple[dict[int, Row], pa.RecordBatch]:
    """Return the rows that pass in the end, and the images of the history, which begins with a snapshot."""
    table: dict[int, Row] = {1: {"id": 1, "status": "paid", "note": "s"}, 3: {"id": 3, "status": None, "note": "s"}}
    row_filter = RowFilter(where, KEYED)
    copied = row_filter.images(copied_images(pa.RecordBatch.from_pylist(list(table.values()), COLUMNS), 0))
    changes = images_of(COLUMNS, [one for change in history(table, steps, full=full) for one in change])
    schema = changes.schema
    found = [copied.cast(pa.schema([f.with_nullable(True) for f in schema])), row_filter.images(changes)]
    nullable = [batch.cast(found[0].schema) for batch in found]
    return {key: row for key, row in table.items() if passes(where, row)}, pa.concat_batches(nullable)


@pytest.mark.parametrize("where", [WHERE, BY_KEY])
@pytest.mark.parametrize("full", [True, False])
@settings(max_examples=60)
@given(steps=STEPS)
def test_last_message_of_each_key_is_the_row_that_passes(where: str, full: bool, steps: Any) -> None:
    expected, images = filtered(where, steps, full=full)
    messages = upsert_messages(images, ["id"], NAMES)
    assert messages.keys is not None
    found: dict[int, Row] = {}
    for key, value in zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True):
        if value is None:
            found.pop(key["id"], None)
        else:
            assert passes(where, value)
            found[key["id"]] = value
    assert found == expected


@pytest.mark.parametrize(("where", "full"), [(WHERE, True), (BY_KEY, True), (BY_KEY, False)])
@settings(max_examples=60)
@given(steps=STEPS)
def test_with_known_old_rows_the_changes_are_a_history(where: str, full: bool, steps: Any) -> None:
    """No row is inserted twice, or changed or deleted without being there."""
    expected, images = filtered(where, steps, full=full)
    messages = changes_messages(images, ["id"], NAMES, "public.orders")
    found: dict[int, Row] = {}
    for change in messages.values.to_pylist():
        before, after, op = change["before"], change["after"], change["op"]
        if op in ("update", "delete"):
            old = found.pop((before or after)["id"])
            assert before is None or before in (old, {"id": old["id"], "status": None, "note": None})
        if op != "delete":
            assert after["id"] not in found
            found[after["id"]] = after
    assert found == expected


def kinds_and_rows(images: pa.RecordBatch) -> list[tuple[Image, Row | None]]:
    return [(Image(each["_image"]), each["row"]) for each in images.to_pylist()]


PAID, DRAFT = {"id": 1, "status": "paid", "note": "a"}, {"id": 1, "status": "draft", "note": "b"}
KEY = {"id": 1, "status": None, "note": None}
OLD_KEY = {"id": 9, "status": None, "note": None}


@pytest.mark.parametrize(
    ("given_images", "expected"),
    [
        ([(Image.INSERTED, PAID)], [(Image.INSERTED, PAID)]),
        ([(Image.INSERTED, DRAFT)], []),
        ([(Image.INSERTED, KEY)], []),
        ([(Image.BEFORE, PAID), (Image.UPDATED, PAID)], [(Image.BEFORE, PAID), (Image.UPDATED, PAID)]),
        ([(Image.BEFORE, PAID), (Image.UPDATED, DRAFT)], [(Image.DELETED, PAID)]),
        ([(Image.BEFORE, DRAFT), (Image.UPDATED, PAID)], [(Image.INSERTED, PAID)]),
        ([(Image.BEFORE, DRAFT), (Image.UPDATED, DRAFT)], []),
        ([(Image.UPDATED, PAID)], [(Image.UPDATED, PAID)]),
        ([(Image.UPDATED, DRAFT)], [(Image.DELETED_KEY, KEY)]),
        ([(Image.BEFORE_KEY, OLD_KEY), (Image.UPDATED, PAID)], [(Image.BEFORE_KEY, OLD_KEY), (Image.UPDATED, PAID)]),
        ([(Image.BEFORE_KEY, OLD_KEY), (Image.UPDATED, DRAFT)], [(Image.DELETED_KEY, OLD_KEY)]),
        ([(Image.DELETED, PAID)], [(Image.DELETED, PAID)]),
        ([(Image.DELETED, DRAFT)], []),
        ([(Image.DELETED_KEY, KEY)], [(Image.DELETED_KEY, KEY)]),
        ([(Image.TRUNCATE, None)], [(Image.TRUNCATE, None)]),
        ([], []),
    ],
)
def test_each_change(given_images: list[tuple[Image, Row]], expected: list[tuple[Image, Row]]) -> None:
    around = [(Image.INSERTED, PAID)]
    for first, last in (([], []), (around, around)):
        images = images_of(COLUMNS, [Change(1, n, *each) for n, each in enumerate([*first, *given_images, *last])])
        found = RowFilter(WHERE, KEYED).images(images)
        found.validate(full=True)
        assert kinds_and_rows(found) == [*first, *expected, *last]


def test_table_without_a_key() -> None:
    changes = [Change(1, 0, Image.BEFORE, PAID), Change(1, 0, Image.UPDATED, DRAFT), Change(2, 0, Image.DELETED, DRAFT)]
    found = RowFilter(WHERE, KEYLESS).images(images_of(COLUMNS, changes))
    assert kinds_and_rows(found) == [(Image.DELETED, PAID)]
