"""A reader schema only gains fields at its end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.formats.conftest import batch, encoded, framed, record
from tests.formats.protos import in_base64

from penstock.errors import UsageError
from penstock.formats import AvroFormat, JsonFormat, ProtobufFormat, RegisteredSchema, RegistryAddress, evolve, resolve
from penstock.formats.batch import decoder_for

UNREACHABLE = RegistryAddress(url="http://none:1")


def registered(schema: Any, kind: str = "AVRO") -> RegisteredSchema:
    return RegisteredSchema(kind=kind, text=schema if isinstance(schema, str) else json.dumps(schema))


def test_avro_gains_fields_at_the_end_also_of_nested_records() -> None:
    """As Debezium's envelopes do: the record that `before` and `after` share gains a field."""
    old_row = record(("id", "int"), ("gone", "string"), name="Row")
    new_row = record(("extra", "string"), ("id", "int"), name="Row")
    old = record(("before", ["null", old_row]), ("after", ["null", "Row"]), name="Envelope")
    new = record(("op", "string"), ("before", ["null", new_row]), ("after", ["null", "Row"]), name="Envelope")
    resolved = resolve(AvroFormat(reader_schema=json.dumps(old), registry=UNREACHABLE))
    found = evolve(resolved, registered(new))
    assert found.has_new_fields
    assert found.added == ("before.extra", "after.extra", "op")
    assert found.conflicts == ()
    assert [field.name for field in found.resolved.physical_type] == ["before", "after", "op"]
    assert [field.name for field in found.resolved.physical_type.field("after").type] == ["id", "gone", "extra"]
    decoder = decoder_for(found.resolved, {1: registered(old), 2: registered(new)})
    newer = encoded(new, {"op": "c", "before": None, "after": {"extra": "e", "id": 2}})
    older = encoded(old, {"before": None, "after": {"id": 1, "gone": "g"}})
    result = decoder.decode(batch([framed(1, older), framed(2, newer)]))
    [row, rejected] = result.rows.to_pylist()
    assert row == {"before": None, "after": {"id": 1, "gone": "g", "extra": None}, "op": None}
    # The newer writer dropped a field that has no default: its rows are problems, and the field is named.
    assert rejected is None
    assert 'field "after.gone": not in the writer schema' in str(result.problems[1])


def test_avro_type_change_is_reported_as_a_conflict() -> None:
    resolved = resolve(AvroFormat(reader_schema=json.dumps(record(("a", "int"), ("b", "string")))))
    found = evolve(resolved, registered(record(("a", "long"), ("b", ["null", "string"]))))
    assert not found.has_new_fields
    assert found.resolved == resolved
    assert found.conflicts == ('field "a": long in the newer schema, int in the reader schema',)


def test_identical_newer_schema_changes_nothing() -> None:
    schema = record(("a", {"type": "array", "items": record(("x", "int"), name="X")}))
    resolved = resolve(AvroFormat(reader_schema=json.dumps(schema)))
    found = evolve(resolved, registered(schema))
    assert (found.has_new_fields, found.conflicts, found.resolved) == (False, (), resolved)


def test_protobuf_gains_fields_by_number() -> None:
    head = 'syntax = "proto3"; '
    old = head + "message M { message P { int32 x = 1; } int32 a = 1; P p = 2; }"
    new = (
        head
        + """
        enum E { Z = 0; }
        message M { message P { E e = 2; int32 x = 1; } string first = 3; P p = 2; int64 a = 1; Q q = 4; }
        message Q { int32 z = 1; }
    """
    )
    resolved = resolve(ProtobufFormat(descriptor_set=in_base64(old), message="M"))
    found = evolve(resolved, registered(new, "PROTOBUF"))
    assert found.added == ("p.e", "first", "q")
    assert found.conflicts == ('field "M.a": type differs in the newer schema',)
    [row] = (
        decoder_for(found.resolved, {})
        .decode(batch([b"\x08\x05\x12\x02\x10\x00\x1a\x01f\x22\x02\x08\x07"]))
        .rows.to_pylist()
    )
    assert row == {"a": 5, "p": {"x": 0, "e": "Z"}, "first": "f", "q": {"z": 7}}


def test_json_gains_fields() -> None:
    resolved = resolve(JsonFormat(columns="id BIGINT, o STRUCT<k: STRING>"))
    newer = {
        "type": "object",
        "properties": {
            "any": {},
            "o": {"type": "object", "properties": {"k": {"type": "string"}, "l": {"type": "number"}}},
            "id": {"type": "string"},
        },
    }
    found = evolve(resolved, registered(newer, "JSON"))
    assert found.added == ("o.l", "any")
    assert found.conflicts == ('field "id": string in the newer schema, int64 in the reader schema',)
    assert found.resolved.raw == ("any",)
    [row] = decoder_for(found.resolved, {}).decode(batch([b'{"any":[1],"o":{"l":2}}'])).rows.to_pylist()
    assert row == {"id": None, "o": {"k": None, "l": 2.0}, "any": "[1]"}


def test_schema_of_another_format_is_rejected() -> None:
    resolved = resolve(JsonFormat(columns="id BIGINT"))
    with pytest.raises(UsageError, match="has format AVRO"):
        evolve(resolved, registered("string"))
