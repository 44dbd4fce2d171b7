"""Avro: messages written by fastavro are decoded correctly, whatever their writer schema."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from tests.formats.conftest import avro, batch, decoded, encoded, framed, problem, record, rows

from penstock.errors import DefiniteError
from penstock.formats import AvroFormat, RegisteredSchema, resolve
from penstock.formats.batch import decoder_for

NOON = datetime(2024, 2, 29, 12, 0, 0, 123000, tzinfo=UTC)


def logical(kind: str, logical_type: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


TYPES: list[tuple[Any, Any, Any, str]] = [
    ("boolean", True, True, "bool"),
    ("int", -(2**31), -(2**31), "int32"),
    ("long", 2**63 - 1, 2**63 - 1, "int64"),
    ("float", 1.5, 1.5, "float"),
    ("double", -1e300, -1e300, "double"),
    ("string", "é\0😀", "é\0😀", "string"),
    ("bytes", b"\xff\0", b"\xff\0", "binary"),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc", "binary"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B", "string"),
    ({"type": "array", "items": "int"}, [1, 2], [1, 2], "list<element: int32>"),
    ({"type": "map", "values": ["null", "long"]}, {"a": 1, "b": None}, {"a": 1, "b": None}, "map<string, int64>"),
    (["null", "string"], None, None, "string"),
    (["null", "int", "string"], "x", {"int": None, "string": "x"}, "struct<int: int32, string: string>"),
    (logical("bytes", "decimal", precision=38, scale=2), Decimal("-" + "9" * 36 + ".99"), None, "decimal128(38, 2)"),
    (
        logical("fixed", "decimal", name="D", size=20, precision=10, scale=3),
        Decimal("1234.567"),
        Decimal("1234.567"),
        "decimal128(10, 3)",
    ),
    (logical("int", "date"), date(1969, 12, 31), date(1969, 12, 31), "date32[day]"),
    (logical("long", "timestamp-millis"), NOON, NOON, "timestamp[us, tz=UTC]"),
    (logical("long", "timestamp-micros"), NOON, NOON, "timestamp[us, tz=UTC]"),
    (logical("long", "local-timestamp-millis"), NOON.replace(tzinfo=None), NOON.replace(tzinfo=None), "timestamp[us]"),
    (logical("long", "local-timestamp-micros"), NOON.replace(tzinfo=None), NOON.replace(tzinfo=None), "timestamp[us]"),
    (logical("int", "time-millis"), 5, 5, "int32"),
    (logical("long", "time-micros"), 5, 5, "int64"),
    (logical("string", "uuid"), UUID(int=7), str(UUID(int=7)), "string"),
]


@pytest.mark.parametrize(("schema", "value", "expected", "column"), TYPES, ids=lambda one: str(one)[:40])
def test_every_type_round_trips(schema: Any, value: Any, expected: Any, column: str) -> None:
    whole = record(("f", schema), ("after", "int"))
    resolved = avro(whole)
    assert str(resolved.physical_type.field("f").type) == column
    wanted = {"f": value if expected is None and value is not None else expected, "after": 7}
    assert rows(resolved, encoded(whole, {"f": value, "after": 7}), None) == [wanted, None]


def test_a_decimal_of_more_than_38_digits_keeps_its_bytes() -> None:
    schema = record(("f", logical("bytes", "decimal", precision=50, scale=0)))
    assert rows(avro(schema), encoded(schema, {"f": Decimal(10) ** 45})) == [{"f": (10**45).to_bytes(19, "big")}]


def test_nested_records_arrays_of_records_and_negative_block_counts() -> None:
    item = record(("sku", "string"), ("tags", {"type": "array", "items": "string"}), name="shop.Item")
    schema = record(("items", {"type": "array", "items": item}), ("first", ["null", "shop.Item"]))
    value = {"items": [{"sku": "a", "tags": []}, {"sku": "b", "tags": ["x", "y"]}], "first": {"sku": "c", "tags": []}}
    assert rows(avro(schema), encoded(schema, value)) == [value]
    # A block may give its size in bytes: then its count is negative.
    numbers = record(("a", {"type": "array", "items": "int"}))
    assert rows(avro(numbers), b"\x03\x04\x02\x04\x00") == [{"a": [1, 2]}]


def test_schema_without_a_record_is_one_column() -> None:
    assert rows(avro("string"), b"\x04hi") == [{"value": "hi"}]
    assert rows(avro(["null", "long"]), b"\x00", b"\x02\x0a") == [{"value": None}, {"value": 5}]


def test_nullable_top_level_record_is_the_record() -> None:
    schema = ["null", record(("a", "int"))]
    assert rows(avro(schema), b"\x00", b"\x02\x0a") == [None, {"a": 5}]


def test_recursive_schemas_are_rejected_by_name() -> None:
    node = record(("next", ["null", "shop.Node"]), name="shop.Node")
    with pytest.raises(DefiniteError, match=r"shop\.Node is recursive") as caught:
        avro(node)
    assert "BYTES" in caught.value.hint


# -- writer and reader ---------------------------------------------------------------------------------------------


def read(reader: Any, writer: Any, value: Any, references: tuple[tuple[str, str], ...] = ()) -> tuple[Any, str | None]:
    """Read one message of a writer schema with a reader schema."""
    resolved = resolve(
        AvroFormat.model_validate({"reader_schema": json.dumps(reader), "registry": {"url": "http://none:1"}})
    )
    writers = {9: RegisteredSchema(kind="AVRO", text=json.dumps(writer), references=references, id=9)}
    result = decoder_for(resolved, writers).decode(batch([framed(9, encoded(writer, value))]))
    [row], [text] = result.rows.to_pylist(maps_as_pydicts="strict"), result.problems.to_pylist()
    return row, text


def test_fields_are_matched_by_name_and_alias_skipped_or_defaulted() -> None:
    writer = record(
        ("gone", {"type": "map", "values": {"type": "array", "items": "string"}}), ("b", "int"), ("old", "int")
    )
    reader = record(
        {"name": "new", "type": "long", "aliases": ["old"]},
        {"name": "c", "type": {"type": "array", "items": "string"}, "default": ["x", "yy"]},
        ("b", "int"),
        {"name": "d", "type": ["null", "string"], "default": None},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["P", "Q"]}, "default": "Q"},
    )
    row, text = read(reader, writer, {"gone": {"k": ["v"]}, "b": 2, "old": 3})
    assert text is None
    assert row == {"new": 3, "c": ["x", "yy"], "b": 2, "d": None, "e": "Q"}


def test_recursive_field_not_in_the_reader_schema_is_skipped() -> None:
    node = record(("next", ["null", "shop.Node"]), name="shop.Node")
    writer = record(("tree", node), ("a", "int"))
    assert read(record(("a", "int")), writer, {"tree": {"next": {"next": None}}, "a": 5}) == ({"a": 5}, None)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", 5, 5),
        ("int", "double", -7, -7.0),
        ("long", "float", 1 << 20, float(1 << 20)),
        ("float", "double", 1.5, 1.5),
        ("string", "bytes", "hé", "hé".encode()),
        ("bytes", "string", "hé".encode(), "hé"),
        ("int", ["null", "long"], 5, 5),
        (["null", "int"], "int", 5, 5),
        (["int", "string"], ["null", "string", "long"], 5, {"string": None, "long": 5}),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), NOON, NOON),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "NEW"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "NEW",
            "NEW",
        ),
    ],
)
def test_promotions_keep_the_value(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert read(record(("f", reader)), record(("f", writer)), {"f": value}) == ({"f": expected}, None)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "reason"),
    [
        ("string", "int", "x", 'field "f": string in the message, expected int'),
        (["null", "int"], "int", None, 'field "f": null in the message, expected int'),
        ("long", "double", 2**53 + 1, 'field "f": integer cannot be represented exactly in a floating-point column'),
        ("long", logical("long", "timestamp-micros"), 5, 'field "f": long in the message, expected timestamp-micros'),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            logical("bytes", "decimal", precision=9, scale=3),
            Decimal("1.25"),
            'field "f": decimal(9,2) in the message, expected decimal(9,3)',
        ),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            logical("bytes", "decimal", precision=4, scale=2),
            Decimal("1234567.25"),
            'field "f": value does not fit in DECIMAL(4,2)',
        ),
    ],
)
def test_incompatible_field_is_named(writer: Any, reader: Any, value: Any, reason: str) -> None:
    row, text = read(record(("f", reader)), record(("f", writer)), {"f": value})
    assert row is None
    assert text is not None
    assert reason in text
    assert "schema id 9" in text


def test_missing_field_without_a_default_is_named() -> None:
    row, text = read(record(("a", "int"), ("b", "int")), record(("a", "int")), {"a": 1})
    assert row is None
    assert text == 'AVRO: field "b": not in the writer schema, and without a default (schema id 9, 6 bytes)'


def test_compatible_union_branches_are_read_despite_incompatible_ones() -> None:
    reader, writer = record(("f", ["null", "int"])), record(("f", ["null", "int", "string"]))
    assert read(reader, writer, {"f": 5}) == ({"f": 5}, None)
    row, text = read(reader, writer, {"f": "x"})
    assert row is None
    assert "matches no member of the union" in str(text)


# -- corrupt messages ----------------------------------------------------------------------------------------------

ORDER = record(
    ("id", "long"),
    ("note", ["null", "string"]),
    ("lines", {"type": "array", "items": record(("sku", "string"), ("n", "int"), name="shop.Line")}),
    ("price", "double"),
    ("paid", "boolean"),
)


def orders() -> list[dict[str, Any]]:
    return [
        {
            "id": n * 1_000_003,
            "note": None if n % 3 else f"note {n}",
            "lines": [{"sku": "s" * (n % 5), "n": -n}] * (n % 4),
            "price": n / 4,
            "paid": n % 2 == 0,
        }
        for n in range(40)
    ]


def read_by_fastavro(message: bytes) -> Any:
    """Read with fastavro; return None if it fails or leaves bytes."""
    source = BytesIO(message)
    try:
        found = fastavro.schemaless_reader(source, fastavro.parse_schema(json.loads(json.dumps(ORDER))), None)
    except Exception:
        return None
    return found if source.tell() == len(message) else None


def test_mutants_decode_as_in_fastavro_or_are_problems() -> None:
    """Flip, truncate and insert bytes: decoded rows equal fastavro's, and messages that it rejects are problems."""
    rng = random.Random(7)
    originals = [encoded(ORDER, one) for one in orders()]
    mutants = []
    for original in originals * 40:
        at = rng.randrange(len(original))
        kind = rng.randrange(3)
        flipped = original[:at] + bytes([original[at] ^ 1 << rng.randrange(8)]) + original[at + 1 :]
        mutants.append([flipped, original[:at], original[:at] + rng.randbytes(1) + original[at:]][kind])
    result = decoded(avro(ORDER), *originals, *mutants)
    found = result.rows.to_pylist()
    assert found[: len(originals)] == orders()
    problems = result.problems.to_pylist()[len(originals) :]
    for mutant, row, text in zip(mutants, found[len(originals) :], problems, strict=True):
        if text is None:
            assert repr(row) == repr(read_by_fastavro(mutant))  # NaN is not equal to itself
        else:
            other = read_by_fastavro(mutant)
            stricter = ("branch -", "boolean is", "32 bits", "64 bits", "items does not fit", "negative", "UTF-8")
            assert other is None or any(words in text for words in stricter), text
    assert sum(text is not None for text in problems) > 500


def test_sliced_and_chunked_columns_are_decoded() -> None:
    resolved = avro(record(("a", "string")))
    column = batch([b"\x02x", None, b"\x02y", b"\x02z"])
    whole = pa.chunked_array([column.slice(1, 2), column.slice(3)])
    assert decoder_for(resolved, {}).decode(whole).rows.to_pylist() == [None, {"a": "y"}, {"a": "z"}]
    assert problem(resolved, b"") == 'AVRO: field "a": message is truncated at byte 0 (0 bytes)'
    assert rows(resolved) == []
