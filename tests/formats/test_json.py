"""JSON: no silent data loss; columns are specified, inferred or registered."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.formats.conftest import decoded, framed, problem, rows
from tests.servers import SharedRegistry, unique

from penstock.errors import DefiniteError, UsageError
from penstock.formats import Extra, JsonFormat, RegistryAddress, resolve

ALL_TYPES = (
    "t TINYINT, s SMALLINT, i INT, b BIGINT, f FLOAT, d DOUBLE, n DECIMAL(10,2), x STRING, y BOOLEAN, day DATE, "
    "at TIMESTAMP, there TIMESTAMP_NTZ, a ARRAY<STRUCT<k: INT>>, m MAP<STRING, DOUBLE>, `a b` STRING"
)


def test_every_type() -> None:
    message = {
        "t": -128, "s": 32767, "i": -(2**31), "b": -(2**63), "f": 0.5, "d": 1e-5, "n": -12345678.9, "x": 'é"\n\\/😀',
        "y": True, "day": "2024-02-29", "at": "2024-01-01T00:30:00.25+01:00", "there": "0001-01-01 00:00:00.000001",
        "a": [{"k": 1}, None, {"more": 2}], "m": {"p": 1, "q": -2.5e3}, "a b": "\b\f\r\t",
    }  # fmt: skip
    expected = message | {
        "n": Decimal("-12345678.90"),
        "day": date(2024, 2, 29),
        "at": datetime(2023, 12, 31, 23, 30, 0, 250000, tzinfo=UTC),
        "there": datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC).replace(tzinfo=None),
        "a": [{"k": 1}, None, {"k": None}],
        "m": {"p": 1.0, "q": -2500.0},
    }
    resolved = resolve(JsonFormat(columns=ALL_TYPES))
    for ascii_only in (True, False):
        assert rows(resolved, json.dumps(message, ensure_ascii=ascii_only).encode()) == [expected]
    assert rows(resolved, b"{}", None, b" null ") == [dict.fromkeys(expected), None, None]


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("DOUBLE", "1.7976931348623157e308", "range"),  # too close to the limit: rejected rather than rounded up
        ("DOUBLE", "1.7e308", 1.7e308),
        ("DOUBLE", "5e-324", 5e-324),
        ("DOUBLE", "0.1", 0.1),
        ("DOUBLE", "123456789.12345678", 123456789.12345678),
        ("DOUBLE", "-0", -0.0),
        ("DOUBLE", "100000000000000000000000", 1e23),
        ("DOUBLE", "9007199254740992", 2.0**53),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("DECIMAL(5,2)", "1.2300e2", Decimal("123.00")),
        ("DECIMAL(5,2)", "0.0100000", Decimal("0.01")),
        ("DECIMAL(5,2)", "0e999999999", Decimal("0.00")),
        ("BIGINT", "-9223372036854775808", -(2**63)),
    ],
)
def test_numbers_are_exact(column: str, text: str, expected: Any) -> None:
    resolved = resolve(JsonFormat(columns=f"v {column}"))
    if isinstance(expected, str):
        assert "out of range" in problem(resolved, f'{{"v":{text}}}'.encode())
    else:
        [row] = rows(resolved, f'{{"v":{text}}}'.encode())
        assert repr(row["v"]) == repr(expected)


def test_extra_fields_are_ignored_or_rejected() -> None:
    message = b'{"id":1,"more":{"deep":[1]}}'
    assert rows(resolve(JsonFormat(columns="id INT")), message) == [{"id": 1}]
    rejecting = resolve(JsonFormat(columns="id INT", extra=Extra.REFUSE))
    assert problem(rejecting, message) == "JSON: field not in the schema at byte 8 (28 bytes)"


def test_a_single_value_is_one_column() -> None:
    assert rows(resolve(JsonFormat(columns="BIGINT")), b"5", b"null") == [{"value": 5}, {"value": None}]


def test_columns_are_inferred_once_and_then_fixed() -> None:
    sample = [
        b'{"a":1,"b":{"c":[1,2.5]},"n":null,"mixed":1}',
        b"not json",
        b'{"a":2,"mixed":"s","big":123456789012345678901}',
    ]
    resolved = resolve(JsonFormat(), sample=sample)
    names = {field.name: str(field.type) for field in resolved.physical_type}
    assert names == {
        "a": "int64",
        "b": "struct<c: list<element: double>>",
        "n": "string",
        "mixed": "string",
        "big": "decimal128(38, 0)",
    }
    assert resolved.raw == ("n", "mixed")
    [row] = rows(resolved, b'{"mixed": {"x": "a\\u0041\\n"}, "n": "t\\"", "later": 1}')
    assert row["mixed"] == '{"x": "a\\u0041\\n"}'
    assert row["n"] == '"t\\""'
    assert 'field "a": a string, expected an integer' in problem(resolved, b'{"a":"1"}')


def test_invalid_column_specifications_are_rejected() -> None:
    with pytest.raises(UsageError, match="neither specified"):
        resolve(JsonFormat())
    with pytest.raises(DefiniteError, match="no message of the sample is valid JSON"):
        resolve(JsonFormat(), sample=[b"x"])
    with pytest.raises(UsageError, match="without constraints"):
        resolve(JsonFormat(columns="id INT NOT NULL"))
    with pytest.raises(UsageError, match="cannot be parsed from text"):
        resolve(JsonFormat(columns="id BINARY"))


def test_columns_by_the_json_schema_of_a_registry(registry: SharedRegistry, address: RegistryAddress) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "price": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "odd": {"type": ["string", "integer"]},
        },
        "definitions": {"tag": {"type": "object", "properties": {"t": {"type": "boolean"}}}},
    }
    subject = unique("json")
    identity = registry.register(subject, json.dumps(schema), "JSON")
    resolved = resolve(JsonFormat(registry=address), subject=subject)
    value = {"id": 1, "name": None, "price": 2.5, "tags": [{"t": True}], "labels": {"a": "b"}, "odd": 3}
    assert rows(resolved, framed(identity, json.dumps(value).encode())) == [value | {"odd": "3"}]
    unknown = "JSON: schema id not found in the schema registry (schema id 7654321, 7 bytes)"
    assert problem(resolved, framed(7654321, b"{}")) == unknown


def test_mutants_decode_as_in_python_json_or_are_problems() -> None:
    rng = random.Random(5)
    resolved = resolve(JsonFormat(columns="a BIGINT, s STRING, l ARRAY<DOUBLE>, o STRUCT<k: BOOLEAN>"))
    original = '{"a": -12, "s": "xé\\u00e9\\n\\ud83d\\ude00", "l": [1, 2.5e1, null], "o": {"k": true}}'.encode()
    letters = b'{}[]",:\\u0dD8e+-.19tnul \x01\xc3\xa9\xff'
    mutants = []
    for _ in range(3000):
        at = rng.randrange(len(original))
        letter = bytes([rng.choice(letters)])
        mutants.append(original[:at] + letter + original[at + rng.randrange(3) :])
    result = decoded(resolved, *mutants)
    valid = 0
    for mutant, row, text in zip(mutants, result.rows.to_pylist(), result.problems.to_pylist(), strict=True):
        try:
            other = json.loads(mutant.decode())
        except ValueError:
            assert text is not None, mutant
            continue
        if text is None:
            valid += 1
            wanted = {name: other.get(name) for name in ("a", "s", "l", "o")}
            wanted["o"] = None if wanted["o"] is None else {"k": wanted["o"].get("k")}
            assert row == wanted
        else:
            assert "invalid JSON" not in text, mutant
    assert valid > 100
