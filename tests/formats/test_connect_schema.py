"""Kafka Connect's logical types, in Avro schemas and in JSON with schemas."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DefiniteError
from penstock.formats import AvroFormat, JsonFormat, RegisteredSchema, decode_batch, evolve, resolve
from penstock.formats.batch import decoder_for
from penstock.formats.logical_types import spark_type

MICROS, MILLIS = "io.debezium.time.MicroTimestamp", "io.debezium.time.Timestamp"


def avro(name: str, *more: dict[str, Any]) -> str:
    at = {"type": "long", "connect.version": 1, "connect.name": name}
    row = {"type": "record", "name": "Row", "fields": [{"name": "at", "type": ["null", at], "default": None}, *more]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]}]
    return json.dumps({"type": "record", "name": "Envelope", "fields": fields})


def test_avro_logical_types_are_kept_when_stored() -> None:
    resolved = resolve(AvroFormat(reader_schema=avro(MICROS)))
    assert resolved.logical_types == ((("before", "at"), MICROS), (("after", "at"), MICROS))
    again = resolve(AvroFormat(reader_schema=resolved.reader))
    assert again.logical_types == resolved.logical_types
    assert type(resolved).model_validate_json(resolved.model_dump_json()) == resolved
    item = {**json.loads(avro(MICROS))["fields"][0]["type"][1], "name": "Item"}
    items = {"name": "all", "type": {"type": "array", "items": item}}
    grown = evolve(resolved, RegisteredSchema(kind="AVRO", text=avro(MICROS, items)))
    assert (("after", "all", "[]", "at"), MICROS) in grown.resolved.logical_types


def test_number_in_another_unit_is_a_problem() -> None:
    resolved = resolve(AvroFormat(reader_schema=avro(MICROS)))
    growth = evolve(resolved, RegisteredSchema(kind="AVRO", text=avro(MILLIS)))
    assert MILLIS in growth.conflicts[0]
    framed = resolved.model_copy(
        update={"format": AvroFormat.model_validate({"registry": {"url": "http://127.0.0.1:9"}})}
    )
    writers = {7: RegisteredSchema(kind="AVRO", text=avro(MILLIS)), 8: RegisteredSchema(kind="AVRO", text=avro(MICROS))}
    messages = [bytes([0, 0, 0, 0, 7, 0, 2, 2, 2]), bytes([0, 0, 0, 0, 8, 0, 2, 2, 2]), bytes([0, 0, 0, 0, 7, 0, 0])]
    rows, problems = decoder_for(framed, writers).decode(pa.array(messages))
    assert 'field "after.at"' in problems[0].as_py()
    assert MILLIS in problems[0].as_py()
    at = datetime.datetime.fromisoformat("1970-01-01T00:00:00.000001")
    assert rows.to_pylist()[1:] == [{"before": None, "after": {"at": at}}, {"before": None, "after": None}]
    assert problems.null_count == 2


FIELDS: list[dict[str, Any]] = [
    {"type": "int16", "field": "small"},
    {"type": "int64", "field": "big", "name": MICROS, "optional": True},
    {"type": "float", "field": "single"},
    {"type": "bytes", "field": "price", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    {"type": "array", "field": "data", "items": {"type": "bytes"}},
    {"type": "map", "field": "names", "keys": {"type": "string"}, "values": {"type": "int32"}},
    {"type": "map", "field": "pairs", "keys": {"type": "int32"}, "values": {"type": "int32"}},
]


def wrapped(payload: Any, fields: list[dict[str, Any]] = FIELDS) -> bytes:
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload}).encode()


def test_json_has_the_columns_of_its_schema() -> None:
    payload = {"small": 1, "big": 2, "single": 0.5, "price": "AQ==", "data": ["AA=="], "names": {"a": 1}}
    message = wrapped({**payload, "pairs": [[1, 2]]})
    resolved = resolve(JsonFormat(), sample=[b"no JSON", message])
    assert spark_type(resolved).simpleString() == (
        "struct<schema:string,payload:struct<small:int,big:timestamp_ntz,single:float,price:binary,data:array<binary>,"
        "names:map<string,int>,pairs:string>>"
    )
    assert resolved.logical_types == (
        (("payload", "big"), MICROS),
        (("payload", "price"), "base64"),
        (("payload", "data", "[]"), "base64"),
    )
    rows, problems = decode_batch(pa.array([message]), resolved)
    assert problems.null_count == 1
    [row] = rows.to_pylist()
    assert row["schema"] == resolved.reader == json.dumps({"type": "struct", "fields": FIELDS})
    at = datetime.datetime.fromisoformat("1970-01-01T00:00:00.000002")
    given = {**payload, "big": at, "price": b"\x01", "data": [b"\x00"], "names": [("a", 1)], "pairs": "[[1, 2]]"}
    assert row["payload"] == given


def test_a_decimal_keeps_its_digits() -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    field = {"type": "bytes", "field": "n", "name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}
    resolved = resolve(JsonFormat(), sample=[wrapped({"n": "AQ=="}, [field])])
    assert resolved.logical_types == ((("payload", "n"), "org.apache.kafka.connect.data.Decimal(10,2)"),)


def test_schema_without_item_type_is_rejected() -> None:
    with pytest.raises(DefiniteError, match=r"payload\.all\.\[\]"):
        resolve(JsonFormat(), sample=[wrapped({}, [{"type": "array", "field": "all"}])])


def test_rows_of_plain_records_have_one_type() -> None:
    record = {"before": None, "after": {"id": 1}, "source": {"lsn": 1}, "op": "r"}
    resolved = resolve(JsonFormat(), sample=[json.dumps(record).encode()])
    assert spark_type(resolved).simpleString() == (
        "struct<before:struct<id:bigint>,after:struct<id:bigint>,source:struct<lsn:bigint>,op:string>"
    )


def test_json_with_a_changed_logical_type_is_a_problem_and_with_an_added_field_is_not() -> None:
    plain = [{"type": "int64", "field": "at", "name": MICROS}, {"type": "int64", "field": "n"}]
    millis = [{**plain[0], "name": MILLIS}, plain[1]]
    named = [plain[0], {**plain[1], "name": MICROS}]
    grown = [*plain, {"type": "string", "field": "more"}]
    resolved = resolve(JsonFormat(), sample=[wrapped({"at": 1, "n": 1}, plain)])
    values = (0, 2**60, 2, 3, 4)  # 2**60 milliseconds, or 36 thousand years if it were microseconds
    schemas = (plain, millis, named, grown, plain)
    messages = [wrapped({"at": at, "n": 1}, each) for at, each in zip(values, schemas, strict=True)]
    rows, problems = decode_batch(pa.array([*messages, b"{"]), resolved)
    found = [None if row is None else row["payload"]["at"].microsecond for row in rows.to_pylist()]
    assert found == [0, None, None, 3, 4, None]
    texts = problems.to_pylist()
    assert "another logical type for payload.at" in texts[1]
    assert "another logical type for payload.n" in texts[2]
    assert [texts[0], texts[3], texts[4]] == [None] * 3
    assert "invalid JSON" in texts[5]
