"""Images become updates: the sum of the diffs over a history is the table."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.changelog.chunks import COLUMNS, ORDERS, Row, chunk
from tests.tables.model import COLUMNS as WIDE
from tests.tables.model import TOAST, History, row

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.user_rows import updates, updates_schema
from penstock.errors import DefiniteError, UsageError
from penstock.model import Image, TableName, image_schema
from penstock.positions import Lsn


def images(rows: list[Row], after: int = 0) -> pa.RecordBatch:
    """Images as the log returns them, encoded and decoded."""
    return StoredChunk.pack(chunk(ORDERS, rows)).unpack(ORDERS.columns, Lsn(after), Lsn(2**62))


def update_tuples(rows: list[Row], after: int = 0) -> list[tuple[Any, ...]]:
    result = updates(images(rows, after), ORDERS.table)
    result.validate(full=True)
    assert result.schema == updates_schema(COLUMNS)
    return [tuple(one[name] for name in ("id", "name", "_diff", "_lsn", "_ordinal")) for one in result.to_pylist()]


def test_every_kind_of_change() -> None:
    rows = [
        Row(20, 0, Image.INSERTED, (1, "a")),
        Row(20, 1, Image.BEFORE, (1, "a")),
        Row(20, 1, Image.UPDATED, (2, "b")),
        Row(20, 2, Image.BEFORE, (2, "b")),
        Row(20, 2, Image.UPDATED, (3, None), (1,)),
        Row(30, 0, Image.DELETED, (3, "b")),
    ]
    assert update_tuples(rows) == [
        (1, "a", 1, "0/14", 0),
        (1, "a", -1, "0/14", 1),
        (2, "b", 1, "0/14", 1),
        (2, "b", -1, "0/14", 2),
        (3, "b", 1, "0/14", 2),
        (3, "b", -1, "0/1E", 0),
    ]
    assert update_tuples(rows, after=20) == [(3, "b", -1, "0/1E", 0)]
    assert update_tuples(rows, after=30) == []


def test_transaction_columns_are_included() -> None:
    result = updates(images([Row(20, 0, Image.INSERTED, (1, "a"))]), ORDERS.table).to_pylist()
    assert [(one["_xid"], one["_committed_at"].microsecond) for one in result] == [(21, 20)]


def test_truncated_batch_fills_unchanged_values() -> None:
    rows = [
        Row(20, 0, Image.BEFORE, (1, "a")),
        Row(20, 0, Image.UPDATED, (1, None), (1,)),
        Row(30, 0, Image.BEFORE, (5, None)),
        Row(30, 0, Image.UPDATED, (6, None), (1,)),
        Row(30, 1, Image.BEFORE, (7, "x")),
        Row(30, 1, Image.UPDATED, (7, None), (1,)),
    ]
    assert [one[:3] for one in update_tuples(rows, after=20)] == [
        (5, None, -1),
        (6, None, 1),
        (7, "x", -1),
        (7, "x", 1),
    ]


ODD = TableName("s s", 'a"b')


@pytest.mark.parametrize(
    "rows",
    [
        [Row(20, 0, Image.UPDATED, (1, "b"))],
        [Row(20, 0, Image.DELETED_KEY, (1, None))],
        [Row(20, 0, Image.BEFORE_KEY, (1, None)), Row(20, 0, Image.UPDATED, (2, "b"))],
        [Row(20, 0, Image.INSERTED, (1, "secret")), Row(20, 1, Image.UPDATED, (1, "secret"))],
    ],
)
def test_missing_old_row_is_rejected_with_a_hint(rows: list[Row]) -> None:
    with pytest.raises(DefiniteError) as caught:
        updates(images(rows), ODD)
    assert str(ODD) in caught.value.message
    assert 'ALTER TABLE "s s"."a""b" REPLICA IDENTITY FULL;' in caught.value.hint
    assert "rows=changes" in caught.value.hint
    assert "secret" not in str(caught.value)


def test_truncate_is_rejected_with_a_hint() -> None:
    with pytest.raises(DefiniteError, match="rows=changes") as caught:
        updates(images([Row(20, 0, Image.TRUNCATE, None)]), ODD)
    assert "REPLICA" not in str(caught.value)


@pytest.mark.parametrize("name", ["_diff", "_LSN", "_Committed_At"])
def test_reserved_column_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="exclude that column"):
        updates_schema(pa.schema([("id", pa.int64()), (name, pa.string())]))


TEXT = st.one_of(st.none(), st.text(max_size=2))
BYTES = st.one_of(st.none(), st.binary(max_size=2))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_sum_over_a_history_is_the_table(data: st.DataObject) -> None:
    history = History(full=True)
    for _ in range(data.draw(st.integers(0, 15))):
        what = data.draw(st.sampled_from(["insert", "update", "delete", "commit"]))
        values = row(
            data.draw(st.integers(0, 1)), data.draw(st.sampled_from("ab")), 0, data.draw(TEXT), data.draw(BYTES)
        )
        if what == "insert":
            history.insert(values)
        elif what == "commit":
            history.commit()
        elif history.table:
            old = data.draw(st.sampled_from(history.table))
            unchanged = data.draw(st.sets(st.sampled_from(sorted(TOAST))))
            unchanged_names = {TOAST[index] for index in unchanged}
            sent = {name: value for name, value in values.items() if name not in unchanged_names}
            history.delete(old) if what == "delete" else history.update(old, sent, unchanged)
    assert sum_of_diffs(history) == Counter(tuple(one.values()) for one in history.table)


def sum_of_diffs(history: History) -> Counter[tuple[Any, ...]]:
    """The sum of ``_diff`` per row, without rows whose sum is zero."""
    result = updates(pa.RecordBatch.from_pylist(history.images, image_schema(WIDE)), ODD)
    found: Counter[tuple[Any, ...]] = Counter()
    for one in result.to_pylist():
        found[tuple(one[name] for name in WIDE.names)] += one["_diff"]
        assert found[tuple(one[name] for name in WIDE.names)] >= 0, "a row is deleted only after it was inserted"
    return +found
