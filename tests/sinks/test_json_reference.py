"""JSON of messages, byte for byte: the encoder against Python's, one value at a time."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.sinks.random_rows import RandomRows, as_text

from penstock.formats import binary_encoder
from penstock.formats.json.encoder import encode_json, encode_json_messages

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    **{
        kind: st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(),
    pa.large_string(): st.text(st.characters(max_codepoint=160, exclude_categories=["Cs"])),
    pa.binary(): st.binary(max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(38, 6): st.decimals(-(10**30), 10**30, places=6),
}


def reference(value: Any, kind: pa.DataType) -> str:
    """Return a value as JSON, the slow way."""
    types = pa.types
    if value is None:
        return "null"
    if types.is_dictionary(kind):
        return reference(value, kind.value_type)
    if types.is_struct(kind):
        fields = [f"{json.dumps(one.name, ensure_ascii=False)}:{reference(value[one.name], one.type)}" for one in kind]
        return f"{{{','.join(fields)}}}"
    if types.is_map(kind):
        pairs = [f"{json.dumps(key, ensure_ascii=False)}:{reference(one, kind.item_type)}" for key, one in value]
        return f"{{{','.join(pairs)}}}"
    if types.is_list(kind):
        return f"[{','.join(reference(one, kind.value_type) for one in value)}]"
    if types.is_floating(kind):
        words = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
        return words.get(str(float(value)), str(pa.scalar(value, kind).cast(pa.string()).as_py()))
    if types.is_decimal(kind):
        return str(pa.scalar(value, kind).cast(pa.string()).as_py())
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if types.is_temporal(kind):
        return json.dumps(as_text(value))
    return json.dumps(value, ensure_ascii=False)


def check(values: pa.Array) -> None:
    expected = [reference(value, values.type) for value in values.to_pylist()]
    found = encode_json(values)
    found.validate(full=True)
    assert found.to_pylist() == expected
    between = encode_json_messages(values, b"\0\1", b"}").to_pylist()
    assert between == [b"\0\1" + text.encode() + b"}" for text in expected]


@given(st.data())
def test_columns(data: st.DataObject) -> None:
    """Columns of each type, with and without nulls, some of them in dictionaries, some rows null; also a slice."""
    count = data.draw(st.integers(0, 6))
    names = data.draw(st.lists(st.text(max_size=5), max_size=5, unique=True))
    columns = []
    for _ in names:
        kind = data.draw(st.sampled_from(list(KINDS)))
        one = st.one_of(st.none(), KINDS[kind]) if data.draw(st.booleans()) else KINDS[kind]
        column = pa.array(data.draw(st.lists(one, min_size=count, max_size=count)), kind)
        columns.append(column.dictionary_encode() if data.draw(st.booleans()) and not is_nan(column) else column)
    nulls = pa.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), pa.bool_())
    rows = pa.StructArray.from_arrays(columns, names, mask=nulls) if names else pa.array([{}] * count, pa.struct([]))
    check(rows)
    check(rows.slice(data.draw(st.integers(0, count))))


def is_nan(column: pa.Array) -> bool:
    """Return whether a column has NaN, which is not equal to itself."""
    return pa.types.is_floating(column.type) and bool(np.isnan(column.drop_null().to_numpy()).any())


@given(st.integers(0, 2**32))
def test_nested_rows(seed: int) -> None:
    made = RandomRows(random.Random(seed))
    check(pa.array([None, *made.rows(5)], made.type))
    structs = pa.array(made.rows(3), made.type)
    shared = pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 2, 2], pa.int32()), structs)
    check(shared)
    check(pa.StructArray.from_arrays([shared.slice(3), pa.array([1, 2])], ["source", "n"]))


def test_messages_of_several_blocks() -> None:
    count = binary_encoder._BLOCK_ROWS * 2 + 7
    numbers = pa.array(np.arange(count))
    words = pa.DictionaryArray.from_arrays(pa.array(np.arange(count) // 1000), pa.array([f"w{n}" for n in range(100)]))
    check(pa.StructArray.from_arrays([numbers, words], ["n", "w"]))
