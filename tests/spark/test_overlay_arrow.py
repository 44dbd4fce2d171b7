"""The table at T from the base at L and the log in between, in Arrow: against the reference model."""

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
    random_bag,
    random_history,
    row,
)

from penstock.errors import DefiniteError, TableError
from penstock.model import Image, TableName, TableSchema, image_schema
from penstock.spark.net import BagNet, KeyedNet, fold_net
from penstock.spark.overlay_arrow import base_columns, in_parts, kept_rows, live_rows, new_rows


def net_of(history: History, schema: TableSchema, low: int, high: int) -> KeyedNet | BagNet:
    images = [image for image in history.images if low < image["_lsn"] <= high]
    table = pa.Table.from_batches(list(batches(images, image_schema(schema.columns), 3)), image_schema(schema.columns))
    net: KeyedNet | BagNet = pickle.loads(pickle.dumps(fold_net(table, schema)))
    return net


def batches(rows: list[Row], schema: pa.Schema, count: int) -> Iterator[pa.RecordBatch]:
    """Rows in about so many batches, each of them a slice of a larger one."""
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
    """Whole, in parts, and some columns alone."""
    net, columns = net_of(history, schema, low, high), schema.columns
    base, wanted = history.states[low], plain(history.states[high])
    assert plain(listed(live_rows(batches(base, columns, 4), net), columns)) == wanted
    if in_parts(net):
        found = listed(new_rows(net), columns)
        for part in range(3):
            found += listed(kept_rows(batches(base[part::3], columns, 2), net), columns)
        assert plain(found) == wanted
    for names in (["n"], ["body", "n"]):
        needed = base_columns(net, names)
        some = live_rows((batch.select(needed.names) for batch in batches(base, columns, 4)), net, names)
        found = listed(some, pa.schema([columns.field(name) for name in names]))
        assert bag(found, names) == bag(history.states[high], names)


def bag(rows: list[Row], names: list[str]) -> Counter[str]:
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
def test_random_bags(seed: int) -> None:
    history = random_bag(seed, transactions=8, changes=20)
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
        what = draw(st.sampled_from(["insert", "insert", "update", "update", "update", "delete", "commit", "truncate"]))
        new = row(1, draw(st.sampled_from("abc")), draw(st.integers(0, 2)), draw(TEXT), draw(BYTES))
        free = not keyed or all(one["a.key"] != new["a.key"] for one in history.table)
        if what == "commit":
            history.commit()
        elif what == "truncate" and draw(st.booleans()):
            history.truncate()
        elif what == "insert" and free:
            history.insert(new)
        elif what in ("update", "delete") and history.table:
            changed(draw, history, new, what, free)
    history.commit()
    return history


def changed(draw: st.DrawFn, history: History, new: Row, what: str, free: bool) -> None:
    old = history.table[draw(st.integers(0, len(history.table) - 1))]
    if what == "delete":
        history.delete(old)
        return
    left_out = draw(st.sets(st.sampled_from(sorted(TOAST))))
    kept = {TOAST[index] for index in left_out} | (set() if free else {"a.key"})
    history.update(old, {name: value for name, value in new.items() if name not in kept}, left_out)


@settings(deadline=None, max_examples=250)
@given(histories(keyed=True), st.data())
def test_any_history_of_a_table_with_a_key(history: History, data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.sampled_from(sorted(history.states))) for _ in range(2))
    check(history, KEYED, low, high)


@settings(deadline=None, max_examples=150)
@given(histories(keyed=False), st.data())
def test_any_history_of_a_table_without_one(history: History, data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.sampled_from(sorted(history.states))) for _ in range(2))
    check(history, KEYLESS, low, high)


def test_a_row_that_moved_twice_takes_its_values_from_where_it_stood() -> None:
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


def lived(schema: TableSchema, base: list[Row], images: list[dict[str, Any]]) -> Counter[str]:
    net = fold_net(pa.Table.from_pylist(images, image_schema(schema.columns)), schema)
    found = listed(live_rows(batches(base, schema.columns, 2), net), schema.columns)
    return bag(found, schema.columns.names)


@pytest.mark.parametrize(
    ("kind", "here", "there"),
    [
        (pa.float64(), 0.0, -0.0),
        (pa.float32(), -0.0, 0.0),
        (pa.float64(), -math.nan, math.nan),  # other bits, the same value
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
    assert lived(schema, base, images) == bag([{"k": there, "v": "old"}, other], ["k", "v"])
    assert lived(schema, base, [image(Image.DELETED_KEY, {"k": there}, 0)]) == bag([other], ["k", "v"])


def test_rows_of_a_bag_are_compared_as_they_are() -> None:
    schema = schema_of((), f=pa.float64(), m=pa.map_(pa.string(), pa.float32()), l=pa.list_(pa.int32()))
    minus: Row = {"f": -0.0, "m": [("a", math.nan), ("b", -0.0)], "l": [1, None]}
    zero: Row = {"f": 0.0, "m": [("b", -0.0), ("a", math.nan)], "l": [1, None]}
    turned = {**zero, "f": -0.0}
    nothing: Row = {"f": None, "m": None, "l": None}
    base = [zero, minus, minus, nothing]
    names = schema.columns.names
    assert lived(schema, base, [image(Image.DELETED, turned, 0)]) == bag([zero, minus, nothing], names)
    images = [image(Image.DELETED, nothing, 0), image(Image.INSERTED, zero, 1)]
    assert lived(schema, base, images) == bag([minus, zero, minus, zero], names)


def test_a_left_out_value_without_its_row_is_an_error() -> None:
    history = History()
    history.insert(row(1, "a"))
    low = history.commit()
    history.update(history.find(1, "a"), {"n": 2}, [0])
    net = net_of(history, KEYED, low, history.commit())
    with pytest.raises(TableError, match="capture it again") as caught:
        list(live_rows([], net))
    assert caught.value.lsn == net.lsn > low
    assert listed(live_rows([], net, ["n"]), pa.schema([COLUMNS.field("n")])) == [{"n": 2}]


def test_a_left_out_value_from_before_a_truncate_is_an_error() -> None:
    images = [image(Image.TRUNCATE, None, 0), image(Image.UPDATED, row(1, "a"), 1, [0])]
    net = fold_net(pa.Table.from_pylist(images, image_schema(COLUMNS)), KEYED)
    for read in (live_rows([], net), new_rows(net)):
        with pytest.raises(TableError, match="capture it again"):
            list(read)


def test_a_bag_that_loses_a_row_it_does_not_have_is_an_error() -> None:
    images = [image(Image.DELETED, row(1, "a"), 0)]
    for before in ([], [image(Image.TRUNCATE, None, 0)]):
        net = fold_net(pa.Table.from_pylist([*before, *images], image_schema(COLUMNS)), KEYLESS)
        with pytest.raises(TableError, match="capture it again"):
            list(live_rows(batches([row(1, "b")], COLUMNS, 1), net))


def test_a_bag_without_old_rows_is_refused() -> None:
    images = [image(Image.UPDATED, row(1, "a"), 0)]
    with pytest.raises(DefiniteError, match="REPLICA IDENTITY FULL"):
        fold_net(pa.Table.from_pylist(images, image_schema(COLUMNS)), KEYLESS)


def test_nothing_happened() -> None:
    for schema in (KEYED, KEYLESS):
        net = fold_net(image_schema(COLUMNS).empty_table(), schema)
        base = [row(1, "a"), row(1, "b")]
        assert plain(listed(live_rows(batches(base, COLUMNS, 1), net), COLUMNS)) == plain(base)
