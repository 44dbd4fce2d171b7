"""Rows as JSON: values of every type round-trip."""

from __future__ import annotations

import base64
import datetime
import json
import math
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.changelog.chunks import ORDERS, Row
from tests.changelog.test_changes import images

from penstock.changelog.json_rows import base64_text, json_rows, multi_changes, multi_changes_schema
from penstock.changelog.user_rows import changes
from penstock.model import Image

TEXT = st.one_of(st.text(max_size=6), st.text(alphabet='a"\\\n\t\x00\x01\x1f\x7f\u2028é😀', max_size=8))
NAIVE = st.datetimes(min_value=datetime.datetime(1, 1, 1), max_value=datetime.datetime(9999, 12, 31))  # noqa: DTZ001
SECONDS = NAIVE.map(lambda at: at.replace(microsecond=0))
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(20, 0), st.decimals(0, 2**64 - 1, places=0)),
    (pa.decimal128(6, 2), st.decimals(-9999, 9999, places=2)),
    (pa.decimal128(38, 38), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-38"))),
    (pa.decimal128(12, 9), st.integers(-(10**4), 10**4).map(lambda n: Decimal(f"{n}E-9"))),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.one_of(NAIVE, SECONDS)),
    (pa.timestamp("us", "UTC"), st.one_of(NAIVE, SECONDS).map(lambda at: at.replace(tzinfo=datetime.UTC))),
]
TypedStrategy = tuple[pa.DataType, st.SearchStrategy[Any]]


def listed(of: TypedStrategy) -> TypedStrategy:
    return pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3)


def mapped(of: TypedStrategy) -> TypedStrategy:
    return pa.map_(pa.string(), of[0]), st.dictionaries(TEXT, st.none() | of[1], max_size=3).map(lambda d: [*d.items()])


def numbered(of: TypedStrategy) -> TypedStrategy:
    pairs = st.tuples(st.integers(0, 9), st.none() | of[1])
    return pa.map_(pa.int32(), of[0]), st.lists(pairs, max_size=3)


def structured(of: list[TypedStrategy]) -> TypedStrategy:
    names = [f'f "{number}"\n' for number, _ in enumerate(of)]
    fields = [pa.field(name, kind) for name, (kind, _) in zip(names, of, strict=True)]
    values = {name: st.none() | value for name, (_, value) in zip(names, of, strict=True)}
    return pa.struct(fields), st.fixed_dictionaries(values)


SHAPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(listed), inner.map(mapped), inner.map(numbered), st.lists(inner, max_size=3).map(structured)
    ),
    max_leaves=4,
)


def expected(kind: pa.DataType, value: Any) -> Any:
    """The expected result of `json.loads`, with numbers as decimals."""
    if value is None or pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_integer(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: expected(field.type, value[field.name]) for field in kind}
    if pa.types.is_map(kind):
        pairs = [[key, expected(kind.item_type, item)] for key, item in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else pairs
    if pa.types.is_list(kind):
        return [expected(kind.value_type, item) for item in value]
    return plain(kind, value)


def plain(kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_floating(kind):
        return shortest(kind, value) if math.isfinite(value) else {"nan": "NaN"}.get(str(value), infinity(value))
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat() + ("Z" if kind.tz else "")
    return value.isoformat() if isinstance(value, datetime.date) else value


def infinity(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"


def shortest(kind: pa.DataType, value: float) -> Decimal:
    return Decimal(str(np.float32(value))) if kind == pa.float32() else Decimal(repr(value))


def same(found: Any, wanted: Any) -> bool:
    """Equal in value and type: 1 is not 1.0, and -0.0 is not 0.0."""
    return repr(normal(found)) == repr(normal(wanted))


def normal(value: Any) -> Any:
    """Normalize decimals: keep the sign, drop trailing zeros."""
    if isinstance(value, Decimal):
        return (value.is_signed(), value.normalize(Context(prec=100)))
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items()}
    return [normal(item) for item in value] if isinstance(value, list) else value


def read(text: str) -> Any:
    def exact(number: str) -> Any:
        return Decimal(number)

    return json.loads(text, parse_float=exact, strict=True, parse_constant=pytest.fail)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_json_rows_round_trip(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(SHAPES, max_size=4))
    kind, values = structured(shapes)
    rows = data.draw(st.lists(st.none() | values, max_size=5))
    before = data.draw(st.integers(0, 2))
    array = pa.array(rows, kind)[before:]
    found = json_rows(array)
    found.validate(full=True)
    assert found.type == pa.string()
    assert len(found) == len(array)
    for text, row in zip(found.to_pylist(), array.to_pylist(maps_as_pydicts=None), strict=True):
        if row is None:
            assert text is None
        else:
            assert same(whole(kind, read(text)), expected(kind, row)), text


def whole(kind: pa.DataType, found: Any) -> Any:
    """Convert integers back to decimals: decimals without a fraction are parsed as integers."""
    if found is None:
        return None
    if pa.types.is_struct(kind):
        assert list(found) == [field.name for field in kind]
        return {field.name: whole(field.type, found[field.name]) for field in kind}
    if pa.types.is_map(kind):
        if pa.types.is_string(kind.key_type):
            return {key: whole(kind.item_type, item) for key, item in found.items()}
        return [[key, whole(kind.item_type, item)] for key, item in found]
    if pa.types.is_list(kind):
        return [whole(kind.value_type, item) for item in found]
    return Decimal(found) if pa.types.is_decimal(kind) else found


def one(value: Any, kind: pa.DataType) -> str:
    text = json_rows(pa.array([{"v": value}], pa.struct([("v", kind)])))[0].as_py()
    return str(text).removeprefix('{"v":').removesuffix("}")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (-0.0, pa.float64(), "-0.0"),
        (1.0, pa.float64(), "1.0"),
        (0.1, pa.float32(), "0.1"),
        (1e23, pa.float64(), "1e+23"),
        (math.nan, pa.float64(), '"NaN"'),
        (-math.inf, pa.float32(), '"-Infinity"'),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (Decimal("1.50"), pa.decimal128(10, 2), "1.50"),
        (Decimal("0E-8"), pa.decimal128(10, 8), "0.00000000"),
        (Decimal("-1E-8"), pa.decimal128(10, 8), "-0.00000001"),
        ('\x00\b\n\x1f\x7f"\\/é', pa.string(), '"\\u0000\\b\\n\\u001f\x7f\\"\\\\/é"'),
        (b"\x00\xff", pa.binary(), '"AP8="'),
        (None, pa.string(), "null"),
        ([], pa.list_(pa.int32()), "[]"),
        ([], pa.map_(pa.string(), pa.string()), "{}"),
        ([("a", None), ("b", "c")], pa.map_(pa.string(), pa.string()), '{"a":null,"b":"c"}'),
        ([(1, "x")], pa.map_(pa.int32(), pa.string()), '[[1,"x"]]'),
        (
            {"months": 1, "days": None},
            pa.struct([("months", pa.int32()), ("days", pa.int32())]),
            '{"months":1,"days":null}',
        ),
        (datetime.date(1, 1, 1), pa.date32(), '"0001-01-01"'),
        (datetime.time(1, 2, 3), pa.time64("us"), '"01:02:03.000000"'),
        (1, pa.timestamp("us"), '"1970-01-01T00:00:00.000001"'),
        (0, pa.timestamp("us", "UTC"), '"1970-01-01T00:00:00Z"'),
        (-1, pa.timestamp("us", "UTC"), '"1969-12-31T23:59:59.999999Z"'),
        (0, pa.timestamp("us", "Europe/Berlin"), '"1970-01-01T00:00:00Z"'),
    ],
)
def test_values_as_json(value: Any, kind: pa.DataType, text: str) -> None:
    assert one(value, kind) == text


def test_type_without_json_form_is_rejected() -> None:
    with pytest.raises(TypeError, match="duration"):
        one(1, pa.duration("us"))


def test_items_of_a_null_list_are_ignored() -> None:
    """A null list may still have items in its values buffer."""
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3]), pa.array([1, 2, 3]), mask=pa.array([False, True]))
    rows = pa.StructArray.from_arrays([lists], names=["v"])
    assert json_rows(rows).to_pylist() == ['{"v":[1]}', '{"v":null}']


@given(st.lists(st.none() | st.binary(max_size=20)), st.integers(0, 3))
def test_base64(values: list[bytes | None], before: int) -> None:
    found = base64_text(pa.array(values, pa.binary())[before:])
    found.validate(full=True)
    assert found.to_pylist() == [None if v is None else base64.b64encode(v).decode() for v in values[before:]]


def test_changes_of_several_tables() -> None:
    found = images(
        [
            Row(20, 0, Image.INSERTED, (1, 'a "quoted" one')),
            Row(20, 1, Image.BEFORE_KEY, (1, None)),
            Row(20, 1, Image.UPDATED, (2, None), (1,)),
            Row(30, 0, Image.TRUNCATE, None),
        ]
    )
    rows = multi_changes(found, ORDERS.table)
    rows.validate(full=True)
    assert rows.schema == multi_changes_schema()
    assert rows.schema.names == ["_table", *changes(found).schema.names]
    sides = [(row["_table"], row["_op"], row["_unchanged"], row["before"], row["after"]) for row in rows.to_pylist()]
    assert sides == [
        ("public.orders", "insert", None, None, '{"id":1,"name":"a \\"quoted\\" one"}'),
        ("public.orders", "update", ["name"], '{"id":1,"name":null}', '{"id":2,"name":null}'),
        ("public.orders", "truncate", None, None, None),
    ]
    assert rows.select(list(rows.schema.names[1:7])) == changes(found).select(list(rows.schema.names[1:7]))
