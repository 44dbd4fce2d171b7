"""JSON of Arrow columns: read back by Python's parser and by our own decoder, the values are the same."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import JsonFormat, decode_batch, resolve
from penstock.formats.json.encoder import encode_json

NOON = datetime(2026, 11, 17, 9, 30, 0, 123456, tzinfo=UTC)


def texts(values: list[Any], kind: pa.DataType) -> list[str]:
    return list(encode_json(pa.array(values, kind)).to_pylist())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.decimal128(38, 2), Decimal("-" + "9" * 36 + ".99"), "-" + "9" * 36 + ".99"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), math.inf, '"Infinity"'),
        (pa.float64(), -math.inf, '"-Infinity"'),
        (pa.float64(), math.nan, '"NaN"'),
        (pa.string(), 'a"\\\n\x01é😀', '"a\\"\\\\\\n\\u0001é😀"'),
        (pa.binary(), b"\xff\0", '"/wA="'),
        (pa.date32(), date(1969, 12, 31), '"1969-12-31"'),
        (pa.timestamp("us", "UTC"), NOON, '"2026-11-17T09:30:00.123456Z"'),
        (pa.timestamp("us"), NOON.replace(tzinfo=None), '"2026-11-17T09:30:00.123456"'),
        (pa.list_(pa.int32()), [1, None], "[1,null]"),
        (pa.list_(pa.int32()), [], "[]"),
        (pa.map_(pa.string(), pa.int32()), [("a", 1), ('"', None)], '{"a":1,"\\"":null}'),
        (pa.map_(pa.int32(), pa.bool_()), [(7, False)], '{"7":false}'),
        (pa.struct([("a b", pa.int32()), ("c", pa.list_(pa.string()))]), {"a b": 1, "c": ["x"]}, '{"a b":1,"c":["x"]}'),
        (pa.struct([]), {}, "{}"),
        (pa.dictionary(pa.int8(), pa.string()), 'a"', '"a\\""'),
    ],
)
def test_each_type(kind: pa.DataType, value: Any, text: str) -> None:
    assert texts([value, None], kind) == [text, "null"]


def test_strings_with_nulls_in_slices() -> None:
    values = [None, 'a"', "", None, "".join(map(chr, range(40))), "é\\"]
    for first in range(len(values) + 1):
        part = pa.array(values).slice(first)
        found = [json.loads(text) for text in encode_json(part).to_pylist()]
        assert found == values[first:]


def test_slices_are_encoded_by_their_own_rows() -> None:
    kind = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int32()))])
    rows = [{"n": n, "tags": [str(n)] * n, "m": [(str(n), n)] * n} if n % 3 else None for n in range(10)]
    whole = pa.array(rows, kind)
    assert encode_json(whole.slice(4, 5)).to_pylist() == encode_json(whole).to_pylist()[4:9]


@given(st.lists(st.one_of(st.none(), st.text())))
def test_any_text_is_read_back(values: list[str | None]) -> None:
    assert [json.loads(text) for text in texts(values, pa.string())] == values


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))))
def test_any_float_is_read_back(values: list[float | None]) -> None:
    assert [json.loads(text) for text in texts(values, pa.float64())] == values


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9))))
def test_base64_is_that_of_python(values: list[bytes | None]) -> None:
    expected = [None if value is None else base64.b64encode(value).decode() for value in values]
    assert [json.loads(text) for text in texts(values, pa.binary())] == expected


def test_decoder_reads_back_what_the_encoder_writes() -> None:
    columns = (
        "flag BOOLEAN, n BIGINT, x DOUBLE, price DECIMAL(20,4), word STRING, day DATE, "
        "at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, doc STRUCT<a: INT, b: STRING>, m MAP<STRING, BIGINT>"
    )
    resolved = resolve(JsonFormat(columns=columns))
    row = {
        **{"flag": False, "n": 7, "x": 1e300, "price": Decimal("-1.2500"), "word": "é\t"},
        **{"day": date(2, 3, 4), "at": NOON, "local": datetime(1, 1, 1), "tags": ["a", None]},  # noqa: DTZ001
        **{"doc": {"a": None, "b": "c"}, "m": [("k", 1)]},
    }
    rows = pa.array([row, dict.fromkeys(row)], resolved.physical_type)
    decoded = decode_batch(encode_json(rows).cast(pa.large_binary()), resolved)
    assert decoded.problems.null_count == 2, decoded.problems
    assert decoded.rows.to_pylist() == rows.to_pylist()
