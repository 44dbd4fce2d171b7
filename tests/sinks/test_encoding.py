"""Encoders: random rows of all types are read back by our own decoders, and by independent ones."""

from __future__ import annotations

import base64
import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from tests.formats.protos import in_base64, message_class
from tests.formats.random_messages import SCHEMAS
from tests.sinks.images import Change, images_of
from tests.sinks.random_rows import RandomRows, as_text

from penstock.errors import DefiniteError, UsageError
from penstock.formats import AvroFormat, JsonFormat, ProtobufFormat, ResolvedFormat, decode_batch, resolve
from penstock.formats.json.schemas import json_schema_columns
from penstock.model import Image
from penstock.sinks.changes import changes_messages
from penstock.sinks.encoding import MessageFormat, SubjectSchema, SubjectStrategy, encoder
from penstock.sinks.messages import SinkMessages
from penstock.sinks.schemas.connect import DECIMAL, ConnectMetadata, connect_field
from penstock.sinks.schemas.record_names import RecordName

KEY, VALUE = RecordName("shop.orders.Key"), RecordName("shop.orders.Value")


class Registrations:
    """A registry that accepts all schemas."""

    def __init__(self) -> None:
        self.schemas: list[SubjectSchema] = []

    def register(self, subject: str, kind: str, text: str, _references: object = ()) -> int:
        self.schemas.append(SubjectSchema(subject, kind, text))
        return len(self.schemas) + 256


def messages(values: pa.Array, keys: pa.Array | None = None) -> SinkMessages:
    zeros = np.zeros(len(values), np.int64)
    return SinkMessages(zeros, zeros, values, keys)


def encoded(form: MessageFormat, values: pa.Array) -> tuple[str, list[bytes | None]]:
    """Return the registered schema and the messages without their header."""
    registry = Registrations()
    _, found = encoder(form, topic="t", value=VALUE, registry=registry).encode(messages(values))
    found.validate(full=True)
    header = b"\0\0\0\1\1" + (b"\0" if form == "PROTOBUF" else b"")
    contents = []
    for one in found.to_pylist():
        assert one is None or one.startswith(header)
        contents.append(one and one[len(header) :])
    [schema] = registry.schemas
    assert (schema.subject, schema.kind) == ("t-value", form)
    return schema.text, contents


def decoded(resolved: ResolvedFormat, contents: list[bytes | None]) -> list[Any]:
    result = decode_batch(pa.array(contents, pa.binary()), resolved)
    assert result.problems.null_count == len(contents), result.problems.to_pylist()
    return list(result.rows.to_pylist(maps_as_pydicts="strict"))


def with_tombstones(kind: pa.StructType, rows: list[Any]) -> pa.StructArray:
    """Return rows with a null before, between and after them; a slice, as it may be one of another array."""
    given = [rows[0], None, *rows[:5], None, *rows[5:], None]
    return pa.array(given, kind).slice(1)


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_avro_of_random_rows(seed: int) -> None:
    made = RandomRows(random.Random(seed))
    values = with_tombstones(made.type, made.rows(20))
    text, contents = encoded("AVRO", values)
    schema = fastavro.parse_schema(json.loads(text))
    expected = values.to_pylist(maps_as_pydicts="strict")
    found = [one and fastavro.schemaless_reader(io.BytesIO(one), schema, None) for one in contents]
    assert found == expected
    assert decoded(resolve(AvroFormat(reader_schema=text)), contents) == expected


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_protobuf_of_random_rows(seed: int) -> None:
    made = RandomRows(random.Random(seed), nulls_inside=False)
    values = with_tombstones(made.type, made.rows(20))
    text, contents = encoded("PROTOBUF", values)
    google = message_class(text, VALUE.name)
    read = [None if one is None else google.FromString(one) for one in contents]
    if "map<" not in text:  # in maps Google's library writes zeros, too
        assert [None if one is None else one.SerializeToString(deterministic=True) for one in read] == contents
    resolved = resolve(ProtobufFormat(descriptor_set=in_base64(text), message=VALUE.name))
    rows = decoded(resolved, contents)
    assert rows == [as_protobuf(row, made.type) for row in values.to_pylist()]
    for field in made.type:
        if not pa.types.is_nested(field.type) and field.type != pa.timestamp("us", "UTC"):
            pairs = [(one, row[field.name]) for one, row in zip(read, rows, strict=True) if one is not None]
            assert [getattr(one, field.name) for one, value in pairs if value is not None] == [
                value for _, value in pairs if value is not None
            ]
            assert not field.nullable or not any(one.HasField(field.name) for one, value in pairs if value is None)


def as_protobuf(value: Any, kind: pa.DataType) -> Any:
    """Return a value as the decoder reads it from Protobuf."""
    if pa.types.is_list(kind):
        return [item_of_protobuf(item, kind.value_type) for item in value or []]
    if pa.types.is_map(kind):
        return {name: item_of_protobuf(item, kind.item_type) for name, item in value or []}
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: as_protobuf(value[field.name], field.type) for field in kind}
    if pa.types.is_decimal(kind):
        return format(value, "f")
    return as_text(value) if pa.types.is_date32(kind) or kind == pa.timestamp("us") else value


def item_of_protobuf(value: Any, kind: pa.DataType) -> Any:
    found = as_protobuf(value, kind)
    return {"items": found} if pa.types.is_list(kind) or pa.types.is_map(kind) else found


@pytest.mark.parametrize("seed", range(SCHEMAS))
@pytest.mark.parametrize("has_registry", [True, False])
def test_json_of_random_rows(seed: int, has_registry: bool) -> None:
    made = RandomRows(random.Random(seed))
    values = with_tombstones(made.type, made.rows(20))
    if has_registry:
        text, contents = encoded("JSON", values)
        assert json.loads(text)["title"] == VALUE.name
        columns, _ = json_schema_columns(text, {})
        assert columns.names == made.type.names
    else:
        contents = encoder("JSON", topic="t", value=VALUE).encode(messages(values))[1].to_pylist()
    loaded = [None if one is None else json.loads(one, parse_float=str, parse_int=str) for one in contents]
    assert [from_json(one, made.type) for one in loaded] == values.to_pylist(maps_as_pydicts="strict")


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Return the value of which JSON, with numbers as text, has this one."""
    if value is None or pa.types.is_boolean(kind) or kind in (pa.string(), pa.large_string()):
        return value
    if pa.types.is_struct(kind):
        assert list(value) == kind.names
        return {field.name: from_json(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [from_json(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {name: from_json(item, kind.item_type) for name, item in value.items()}
    if pa.types.is_binary(kind):
        return base64.b64decode(value)
    return pa.scalar(value, pa.string()).cast(kind).as_py()


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_json_with_schemas_of_random_rows(seed: int) -> None:
    made = RandomRows(random.Random(seed), maps=False)
    values = with_tombstones(made.type, made.rows(20))
    contents = encoder("JSON", topic="t", value=VALUE, with_schemas=True).encode(messages(values))[1].to_pylist()
    rows = decoded(resolve(JsonFormat(), sample=[one for one in contents if one]), contents)
    assert [row and row["payload"] for row in rows] == values.to_pylist()


# -- envelopes ---------------------------------------------------------------------------------------------------------

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("form", ["JSON", "AVRO", "PROTOBUF"])
def test_changes_have_one_type_for_both_rows(form: MessageFormat) -> None:
    at = datetime(2026, 11, 17, tzinfo=UTC)
    history = [
        Change(16, 0, Image.BEFORE, {"id": 1, "at": at}),
        Change(16, 0, Image.UPDATED, {"id": 2, "at": None}),
        Change(16, 1, Image.TRUNCATE, None),
    ]
    found = changes_messages(images_of(COLUMNS, history), ["id"], COLUMNS.names, "public.orders")
    registry = Registrations()
    keys, values = encoder(form, topic="t", key=KEY, value=RecordName("shop.Change"), registry=registry).encode(found)
    assert keys is not None
    assert [one is None for one in keys.to_pylist()] == [False, True]
    assert values.null_count == 0
    text = registry.schemas[1].text
    assert [schema.subject for schema in registry.schemas] == ["t-key", "t-value"]
    if form == "JSON":
        return
    before, after = {"id": 1, "at": at}, {"id": 2, "at": None}
    if form == "AVRO":
        rows = decoded(resolve(AvroFormat(reader_schema=text)), [one[5:] for one in values.to_pylist()])
        assert [one["type"] for one in json.loads(text)["fields"]][-1] == ["null", "Row"]
    else:
        resolved = resolve(ProtobufFormat(descriptor_set=in_base64(text), message="shop.Change"))
        rows = decoded(resolved, [one[6:] for one in values.to_pylist()])
        assert text.count("message Row {") == 1
    assert [(row["op"], row["before"], row["after"]) for row in rows] == [
        ("update", before, after),
        ("truncate", None, None),
    ]


# -- schemas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [
        ("topic", ["orders-key", "orders-value"]),
        ("record", ["my_shop.orders.Key", "my_shop.orders.Value"]),
        ("topic record", ["orders-my_shop.orders.Key", "orders-my_shop.orders.Value"]),
    ],
)
@pytest.mark.parametrize("form", ["AVRO", "PROTOBUF"])
def test_subjects(form: MessageFormat, subjects: SubjectStrategy, expected: list[str]) -> None:
    registry = Registrations()
    names = RecordName("my-shop.orders.Key"), RecordName("my-shop.orders.Value")
    form_of = encoder(form, topic="orders", key=names[0], value=names[1], registry=registry, subjects=subjects)
    rows = pa.array([{"id": 1}], pa.struct([pa.field("id", pa.int64(), nullable=False)]))
    listed = form_of.schemas(rows.type, rows.type)
    assert [one.subject for one in listed] == expected
    assert registry.schemas == []
    form_of.encode(messages(rows, rows))
    form_of.encode(messages(rows, rows))
    assert registry.schemas == listed


def test_new_column_is_a_new_schema() -> None:
    registry = Registrations()
    form = encoder("AVRO", topic="t", value=VALUE, registry=registry)
    form.encode(messages(pa.array([{"a": 1}])))
    _, values = form.encode(messages(pa.array([{"a": 1, "b": "x"}])))
    assert values.to_pylist() == [b"\0\0\0\1\2" + b"\2\2\2\2x"]
    assert len(registry.schemas) == 2


def test_names_of_columns_become_valid() -> None:
    inner = pa.struct([("a-b", pa.int32()), ("ab", pa.int32()), ("inner", pa.struct([("x", pa.int32())]))])
    kind = pa.struct(
        [("1 st", pa.int32()), ("é", inner), ("Rows", pa.list_(inner)), ("more", pa.map_(pa.string(), inner))]
    )
    nested = {"a-b": 2, "ab": 3, "inner": {"x": 4}}
    rows = pa.array([{"1 st": 1, "é": nested, "Rows": [nested], "more": [("k", nested)]}], kind)
    valid = {"a_b": 2, "ab": 3, "inner": {"x": 4}}
    expected = {"_1_st": 1, "_": valid, "Rows": [valid], "more": {"k": valid}}
    text, contents = encoded("AVRO", rows)
    assert decoded(resolve(AvroFormat(reader_schema=text)), contents) == [expected]
    assert fastavro.schemaless_reader(io.BytesIO(contents[0] or b""), json.loads(text), None) == expected
    text, contents = encoded("PROTOBUF", rows)
    resolved = resolve(ProtobufFormat(descriptor_set=in_base64(text), message=VALUE.name))
    assert decoded(resolved, contents) == [expected]


@pytest.mark.parametrize("form", ["AVRO", "PROTOBUF"])
def test_columns_with_the_same_valid_name_are_an_error(form: MessageFormat) -> None:
    with pytest.raises(UsageError, match="columns 'a b' and 'a-b' have the same name") as caught:
        encoded(form, pa.array([{"a b": 1, "a-b": 2}]))
    assert "Rename" in caught.value.hint


@pytest.mark.parametrize("form", ["JSON", "AVRO", "PROTOBUF"])
def test_type_that_a_schema_cannot_represent(form: MessageFormat) -> None:
    with pytest.raises(UsageError, match=r"column 't' has type time64\[us\], which"):
        encoded(form, pa.array([{"t": 1}], pa.struct([("t", pa.time64("us"))])))


@pytest.mark.parametrize("form", ["AVRO", "PROTOBUF"])
def test_binary_formats_require_a_registry(form: MessageFormat) -> None:
    with pytest.raises(UsageError, match=f"FORMAT {form} requires a schema registry") as caught:
        encoder(form, topic="t", value=VALUE)
    assert "USING SCHEMA REGISTRY" in caught.value.hint


def test_schemas_are_in_messages_or_in_the_registry() -> None:
    with pytest.raises(UsageError, match="with schemas"):
        encoder("JSON", topic="t", value=VALUE, registry=Registrations(), with_schemas=True)


@pytest.mark.parametrize("row", [{"m": [("k", None)]}, {"a": [1, None]}], ids=["map", "array"])
def test_null_inside_is_an_error_in_protobuf(row: dict[str, Any]) -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int32())), ("a", pa.list_(pa.int32()))])
    with pytest.raises(DefiniteError, match=r"null.*, which Protobuf cannot represent"):
        encoded("PROTOBUF", pa.array([row], kind))


def test_keys_of_maps_are_text_in_avro() -> None:
    kind = pa.struct([pa.field("key", pa.int32(), nullable=False), ("m", pa.map_(pa.int32(), pa.int32()))])
    text, contents = encoded("AVRO", pa.array([{"key": 1, "m": [(2, 3)]}], kind))
    assert decoded(resolve(AvroFormat(reader_schema=text)), contents) == [{"key": 1, "m": {"2": 3}}]


@pytest.mark.parametrize("form", ["JSON", "AVRO", "PROTOBUF"])
def test_values_in_dictionaries_are_encoded_like_others(form: MessageFormat) -> None:
    """Envelopes write values that most rows share as dictionaries."""
    for kind, column in (
        (pa.string(), ["a", None, "a", ""]),
        (pa.date32(), [datetime(2026, 11, 17, tzinfo=UTC).date(), None, None, None]),
        (pa.decimal128(5, 2), [Decimal("1.20"), None, Decimal("1.20"), None]),
    ):
        plain = pa.array(column, kind)
        rows = [pa.StructArray.from_arrays([one], ["c"]) for one in (plain, plain.dictionary_encode())]
        assert encoded(form, rows[0]) == encoded(form, rows[1])
        contents = [
            encoder("JSON", topic="t", value=VALUE, with_schemas=True).encode(messages(one))[1].to_pylist()
            for one in rows
        ]
        assert contents[0] == contents[1]


def test_values_of_logical_types_are_converted() -> None:
    """A field with a logical type of Connect may have an Arrow type with the same meaning."""
    at = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    logical = {
        "price": (pa.decimal128(10, 2), ConnectMetadata(DECIMAL, 1, {"scale": "2"}), Decimal("-1.28"), "gA=="),
        "day": (pa.date32(), ConnectMetadata("io.debezium.time.Date", 1), at.date(), -1),
        "micros": (pa.timestamp("us", "UTC"), ConnectMetadata("io.debezium.time.MicroTimestamp", 1), at, -1),
        "millis": (pa.timestamp("us", "UTC"), ConnectMetadata("io.debezium.time.Timestamp", 1), at, -1),
        "zoned": (
            pa.timestamp("us", "UTC"),
            ConnectMetadata("io.debezium.time.ZonedTimestamp", 1),
            at,
            "1969-12-31T23:59:59.999999Z",
        ),
    }
    kind = pa.struct([connect_field(pa.field(name, one[0]), one[1]) for name, one in logical.items()])
    rows = pa.array([{name: one[2] for name, one in logical.items()}, dict.fromkeys(logical)], kind)
    record = RecordName("s.Value", is_connect=True)
    _, values = encoder("JSON", topic="t", value=record).encode(messages(rows))
    expected = {name: one[3] for name, one in logical.items()}
    assert [json.loads(one) for one in values.to_pylist()] == [expected, dict.fromkeys(logical)]
    registry = Registrations()
    _, framed = encoder("AVRO", topic="t", value=record, registry=registry).encode(messages(rows))
    read = decoded(resolve(AvroFormat(reader_schema=registry.schemas[0].text)), [one[5:] for one in framed.to_pylist()])
    assert read[0]["zoned"] == at
    assert read[0]["day"] == at.date()
    assert read[1] == dict.fromkeys(logical)
