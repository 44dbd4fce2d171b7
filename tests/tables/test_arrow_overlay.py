"""The table at T from the base at L and the log in between, in Arrow: compared with the reference model."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables.model import (
    COLUMNS,
    KEYED,
    KEYLESS,
    NOON,
    TOAST,
    History,
    Row,
    plain,
    random_history,
    random_keyless_history,
    row,
)

from penstock.errors import DefiniteError, TableError
from penstock.model import Image, TableName, TableSchema, image_schema
from penstock.tables.arrow.fold import KeyedNet, KeylessNet, fold_net
from penstock.tables.arrow.overlay import base_columns, can_split, kept_rows, live_rows, new_rows


def net_of(history: History, schema: TableSchema, low: int, high: int) -> KeyedNet | KeylessNet:
    images = [image for image in history.images if low < image["_lsn"] <= high]
    table = pa.Table.from_batches(list(batches(images, image_schema(schema.columns), 3)), image_schema(schema.columns))
    net: KeyedNet | KeylessNet = pickle.loads(pickle.dumps(fold_net(table, schema)))
    return net


def batches(rows: list[Row], schema: pa.Schema, count: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in about `count` batches, each a slice of a larger batch."""
    size = max(1, -(-len(rows) // count))
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        yield pa.RecordBatch.from_pylist([*some[:1], *some], schema).slice(1)


def listed(found: Iterator[pa.RecordBatch], columns: pa.Schema) -> list[Row]:
    rows: list[Row] = []
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == columns
        rows += batch.to_pylist()
    return rows


def check(history: History, schema: TableSchema, low: int, high: int) -> None:
    """Check all rows at once, in parts, and with some columns only."""
    net, columns = net_of(history, schema, low, high), schema.columns
    base, wanted = history.states[low], plain(history.states[high])
    assert plain(listed(live_rows(batches(base, columns, 4), net), columns)) == wanted
    if can_split(net):
        found = listed(new_rows(net), columns)
        for part in range(3):
            found += listed(kept_rows(batches(base[part::3], columns, 2), net), columns)
        assert plain(found) == wanted
    for names in (["n"], ["body", "n"]):
        needed = base_columns(net, names)
        some = live_rows((batch.select(needed.names) for batch in batches(base, columns, 4)), net, names)
        found = listed(some, pa.schema([columns.field(name) for name in names]))
        assert row_counts(found, names) == row_counts(history.states[high], names)


def row_counts(rows: list[Row], names: list[str]) -> Counter[str]:
    return Counter(repr([one[name] for name in names]) for one in rows)


@pytest.mark.parametrize(("full", "truncate"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("seed", range(4))
def test_random_histories(seed: int, full: bool, truncate: bool) -> None:
    history = random_history(seed, full=full, groups=30, transactions=12, truncate=truncate)
    positions = sorted(history.states)
    for start, low in enumerate(positions):
        for high in {*positions[start : start + 3], positions[-1]}:
            check(history, KEYED, low, high)


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_of_a_keyless_table(seed: int) -> None:
    history = random_keyless_history(seed, transactions=8, changes=20)
    positions = sorted(history.states)
    for start, low in enumerate(positions):
        for high in {*positions[start : start + 3], positions[-1]}:
            check(history, KEYLESS, low, high)


TEXT = st.none() | st.text(max_size=2)
BYTES = st.none() | st.binary(max_size=2)


@st.composite
def histories(draw: st.DrawFn, keyed: bool) -> History:
    history = History(full=not keyed or draw(st.booleans()))
    history.commit()
    for _ in range(draw(st.integers(1, 25))):
        action = draw(
            st.sampled_from(["insert", "insert", "update", "update", "update", "delete", "commit", "truncate"])
        )
        new = row(1, draw(st.sampled_from("abc")), draw(st.integers(0, 2)), draw(TEXT), draw(BYTES))
        free = not keyed or all(one["a.key"] != new["a.key"] for one in history.table)
        if action == "commit":
            history.commit()
        elif action == "truncate" and draw(st.booleans()):
            history.truncate()
        elif action == "insert" and free:
            history.insert(new)
        elif action in ("update", "delete") and history.table:
            apply_change(draw, history, new, action, free)
    history.commit()
    return history


def apply_change(draw: st.DrawFn, history: History, new: Row, action: str, free: bool) -> None:
    old = history.table[draw(st.integers(0, len(history.table) - 1))]
    if action == "delete":
        history.delete(old)
        return
    unsent = draw(st.sets(st.sampled_from(sorted(TOAST))))
    kept = {TOAST[index] for index in unsent} | (set() if free else {"a.key"})
    history.update(old, {name: value for name, value in new.items() if name not in kept}, unsent)


@settings(deadline=None, max_examples=250)
@given(histories(keyed=True), st.data())
def test_any_history_of_a_keyed_table(history: History, data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.sampled_from(sorted(history.states))) for _ in range(2))
    check(history, KEYED, low, high)


@settings(deadline=None, max_examples=150)
@given(histories(keyed=False), st.data())
def test_any_history_of_a_keyless_table(history: History, data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.sampled_from(sorted(history.states))) for _ in range(2))
    check(history, KEYLESS, low, high)


def test_row_that_moved_twice_keeps_the_values_of_its_original_key() -> None:
    history = History()
    history.insert(row(1, "a", 0, "of a", b"a"))
    history.insert(row(1, "b", 0, "of b", b"b"))
    low = history.commit()
    moved = history.update(history.find(1, "a"), {"a.key": "c"}, [0, 4])
    history.update(history.find(1, "b"), {"a.key": "a"}, [0, 4])
    history.update(moved, {"a.key": "b", "n": 7}, [0, 4])
    high = history.commit()
    check(history, KEYED, low, high)
    assert {one["body"] for one in history.states[high]} == {"of a", "of b"}


def schema_of(key: tuple[str, ...], **columns: pa.DataType) -> TableSchema:
    return TableSchema(TableName("public", "t"), pa.schema(list(columns.items())), key)


def image(kind: Image, values: Row | None, ordinal: int, unchanged: list[int] | None = None) -> dict[str, Any]:
    place = {"_lsn": 8, "_ordinal": ordinal, "_image": int(kind), "_xid": 1, "_committed_at": NOON}
    return {**place, "_unchanged": unchanged, "row": values}


def live_counts(schema: TableSchema, base: list[Row], images: list[dict[str, Any]]) -> Counter[str]:
    net = fold_net(pa.Table.from_pylist(images, image_schema(schema.columns)), schema)
    found = listed(live_rows(batches(base, schema.columns, 2), net), schema.columns)
    return row_counts(found, schema.columns.names)


@pytest.mark.parametrize(
    ("kind", "here", "there"),
    [
        (pa.float64(), 0.0, -0.0),
        (pa.float32(), -0.0, 0.0),
        (pa.float64(), -math.nan, math.nan),  # different bits, same value
        (pa.list_(pa.float64()), [0.0, 1.0], [-0.0, 1.0]),
        (pa.struct([("lower", pa.float32())]), {"lower": -0.0}, {"lower": 0.0}),
        (pa.map_(pa.string(), pa.string()), [("a", "1"), ("b", None)], [("b", None), ("a", "1")]),
    ],
)
def test_keys_are_compared_as_postgres_does(kind: pa.DataType, here: Any, there: Any) -> None:
    schema = schema_of(("k",), k=kind, v=pa.string())
    other: Row = {"k": None, "v": "other"}
    base = [{"k": here, "v": "old"}, other]
    images = [image(Image.UPDATED, {"k": there, "v": None}, 0, [1])]
    assert live_counts(schema, base, images) == row_counts([{"k": there, "v": "old"}, other], ["k", "v"])
    assert live_counts(schema, base, [image(Image.DELETED_KEY, {"k": there}, 0)]) == row_counts([other], ["k", "v"])


def test_rows_of_a_keyless_table_are_compared_bit_by_bit() -> None:
    schema = schema_of((), f=pa.float64(), m=pa.map_(pa.string(), pa.float32()), l=pa.list_(pa.int32()))
    minus: Row = {"f": -0.0, "m": [("a", math.nan), ("b", -0.0)], "l": [1, None]}
    zero: Row = {"f": 0.0, "m": [("b", -0.0), ("a", math.nan)], "l": [1, None]}
    turned = {**zero, "f": -0.0}
    nothing: Row = {"f": None, "m": None, "l": None}
    base = [zero, minus, minus, nothing]
    names = schema.columns.names
    assert live_counts(schema, base, [image(Image.DELETED, turned, 0)]) == row_counts([zero, minus, nothing], names)
    images = [image(Image.DELETED, nothing, 0), image(Image.INSERTED, zero, 1)]
    assert live_counts(schema, base, images) == row_counts([minus, zero, minus, zero], names)


def test_unsent_value_without_its_row_is_an_error() -> None:
    history = History()
    history.insert(row(1, "a"))
    low = history.commit()
    history.update(history.find(1, "a"), {"n": 2}, [0])
    net = net_of(history, KEYED, low, history.commit())
    with pytest.raises(TableError, match="missing from its base table") as caught:
        list(live_rows([], net))
    assert caught.value.lsn == net.lsn > low
    assert listed(live_rows([], net, ["n"]), pa.schema([COLUMNS.field("n")])) == [{"n": 2}]


def test_unsent_value_from_before_a_truncate_is_an_error() -> None:
    images = [image(Image.TRUNCATE, None, 0), image(Image.UPDATED, row(1, "a"), 1, [0])]
    net = fold_net(pa.Table.from_pylist(images, image_schema(COLUMNS)), KEYED)
    for read in (live_rows([], net), new_rows(net)):
        with pytest.raises(TableError, match="missing from its base table"):
            list(read)


def test_delete_of_a_missing_row_of_a_keyless_table_is_an_error() -> None:
    images = [image(Image.DELETED, row(1, "a"), 0)]
    for before in ([], [image(Image.TRUNCATE, None, 0)]):
        net = fold_net(pa.Table.from_pylist([*before, *images], image_schema(COLUMNS)), KEYLESS)
        with pytest.raises(TableError, match="missing from its base table"):
            list(live_rows(batches([row(1, "b")], COLUMNS, 1), net))


def test_keyless_table_without_old_rows_is_rejected() -> None:
    images = [image(Image.UPDATED, row(1, "a"), 0)]
    with pytest.raises(DefiniteError, match="REPLICA IDENTITY FULL"):
        fold_net(pa.Table.from_pylist(images, image_schema(COLUMNS)), KEYLESS)


def test_empty_range() -> None:
    for schema in (KEYED, KEYLESS):
        net = fold_net(image_schema(COLUMNS).empty_table(), schema)
        base = [row(1, "a"), row(1, "b")]
        assert plain(listed(live_rows(batches(base, COLUMNS, 1), net), COLUMNS)) == plain(base)
