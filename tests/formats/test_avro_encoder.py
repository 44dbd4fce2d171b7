"""Avro of Arrow columns: random rows from messages of fastavro are encoded to messages that fastavro reads."""

from __future__ import annotations

import io
import json
import random
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.conftest import avro, decoded, encoded, framed, record
from tests.formats.random_messages import SCHEMAS
from tests.formats.test_random_avro import a_record

from penstock.errors import DefiniteError
from penstock.formats.avro.encoder import encode_avro
from penstock.formats.avro.schema import parse_avro
from penstock.formats.decimal_bytes import decimal_bytes, fixed_decimal_bytes


def written(schema: Any, values: pa.Array, header: bytes = b"") -> list[bytes]:
    return list(encode_avro(parse_avro(json.dumps(schema)), values, header).to_pylist())


def read_by_fastavro(schema: Any, message: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(message), fastavro.parse_schema(json.loads(json.dumps(schema))), None)


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_rows_of_random_schemas(seed: int) -> None:
    rng = random.Random(seed)
    schema, make = a_record(rng, 3)
    values = [make(rng)[0] for _ in range(40)]
    rows = decoded(avro(schema), *[encoded(schema, value) for value in values]).rows
    messages = written(schema, rows)
    assert [read_by_fastavro(schema, message) for message in messages] == values
    assert decoded(avro(schema), *messages).rows == rows
    part = slice(rng.randrange(20), rng.randrange(20, 40))
    assert written(schema, rows.slice(part.start, part.stop - part.start)) == messages[part]


def test_header_precedes_each_message() -> None:
    schema = record(("n", "long"))
    rows = pa.array([{"n": 1}, {"n": -300}])
    assert written(schema, rows, b"\0\0\0\0\7") == [framed(7, encoded(schema, {"n": n})) for n in (1, -300)]
    assert written(schema, rows.slice(0, 0)) == []


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1)))
def test_decimals_have_the_fewest_bytes(numbers: list[int]) -> None:
    """As Java's BigInteger writes them, which Avro and Connect use."""
    values = pa.array([Decimal(number) for number in numbers], pa.decimal128(38, 0))
    sizes = [(number if number >= 0 else ~number).bit_length() // 8 + 1 for number in numbers]
    expected = [number.to_bytes(size, "big", signed=True) for number, size in zip(numbers, sizes, strict=True)]
    assert decimal_bytes(values).to_pylist() == expected
    assert fixed_decimal_bytes(values, 20).to_pylist() == [
        number.to_bytes(20, "big", signed=True) for number in numbers
    ]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("long", None, "column 'v' is null, but its Avro type long does not allow null"),
        (["int", "string"], None, "column 'v' is null, but its Avro type does not allow null"),
        (
            {"type": "fixed", "name": "F", "size": 3},
            b"ab",
            "a value does not have the 3 bytes of Avro type fixed shop.F",
        ),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "a value is not a symbol of Avro type enum shop.E"),
        (
            {"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 3, "scale": 0},
            Decimal(128),
            "a decimal does not fit into 1 bytes",
        ),
    ],
)
def test_values_that_the_schema_does_not_allow(kind: Any, value: Any, message: str) -> None:
    schema = record(("v", kind))
    rows = pa.array([{"v": value}], avro(schema).physical_type)
    with pytest.raises(DefiniteError, match=message):
        written(schema, rows)
