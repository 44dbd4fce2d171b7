"""Schemas and encoded messages equal those that Debezium wrote, with Connect's own converters."""

from __future__ import annotations

import base64
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from tests.debezium.recording import Message, Recording, schema_id
from tests.sinks.connect_types import arrow_field

from penstock.sinks.encoding import MessageEncoder, encoder
from penstock.sinks.messages import SinkMessages
from penstock.sinks.schemas.avro import avro_schema_text
from penstock.sinks.schemas.connect import connect_metadata, connect_schema_text
from penstock.sinks.schemas.record_names import RecordName
from penstock.testing.debezium import Converter

GOLDEN = Path(__file__).parent.parent / "debezium" / "golden" / "types"
TOPICS = ["public.typed", "public.moved", "transaction"]
JSON_SOURCE, AVRO_SOURCE = "types_json_with_schemas", "types_avro"


@cache
def recording() -> Recording:
    return Recording.load(GOLDEN)


def messages(topic: str, converter: Converter) -> list[Message]:
    return [
        one for one in recording().topics[converter, topic].messages if one.key is not None and one.value is not None
    ]


def connect_schema(part: bytes | None) -> dict[str, Any]:
    assert part is not None
    schema: dict[str, Any] = json.loads(part)["schema"]
    return schema


def avro_source(schema: dict[str, Any]) -> pa.Field:
    """Return the field of a schema in JSON, with the name of the source that wrote Avro."""
    return arrow_field(json.loads(json.dumps(schema).replace(JSON_SOURCE, AVRO_SOURCE)))


def name_of(field: pa.Field) -> RecordName:
    metadata = connect_metadata(field)
    return RecordName(metadata.name, is_connect=True, version=metadata.version)


@pytest.mark.parametrize("topic", TOPICS)
def test_schema_text_is_that_of_the_json_converter(topic: str) -> None:
    for one in messages(topic, Converter.JSON_WITH_SCHEMAS):
        for part in (one.key, one.value):
            assert part is not None
            field = arrow_field(connect_schema(part))
            head = f'{{"schema":{connect_schema_text(field)},"payload":'
            assert part.decode().startswith(head)


@pytest.mark.parametrize("topic", TOPICS)
def test_schema_text_is_that_of_the_avro_converter(topic: str) -> None:
    plain, framed = messages(topic, Converter.JSON_WITH_SCHEMAS)[0], messages(topic, Converter.AVRO)[0]
    for json_part, avro_part in ((plain.key, framed.key), (plain.value, framed.value)):
        assert avro_part is not None
        field = avro_source(connect_schema(json_part))
        assert avro_schema_text(field) == recording().schemas[schema_id(avro_part)]


class Ids:
    """A registry that has the schemas of the recording."""

    def register(self, _subject: str, kind: str, text: str, references: object = ()) -> int:
        assert (kind, references) == ("AVRO", ())
        [found] = [number for number, known in recording().schemas.items() if known == text]
        return found


def without_logical_types(schema: Any) -> Any:
    """Return an Avro schema whose values are read as they were written."""
    if isinstance(schema, dict):
        return {name: without_logical_types(one) for name, one in schema.items() if name != "logicalType"}
    return [without_logical_types(one) for one in schema] if isinstance(schema, list) else schema


def column(values: list[Any], kind: pa.DataType) -> pa.StructArray:
    return pa.array(values, kind)


def both(topic: str, form: MessageEncoder, key: pa.Array, value: pa.Array) -> tuple[list[bytes], list[bytes]]:
    positions = np.zeros(len(value), np.int64)
    keys, values = form.encode(SinkMessages(positions, positions, value, key))
    assert keys is not None
    return keys.to_pylist(), values.to_pylist()


@pytest.mark.parametrize("topic", TOPICS)
def test_avro_messages_are_those_of_the_converter(topic: str) -> None:
    known = messages(topic, Converter.AVRO)
    first = messages(topic, Converter.JSON_WITH_SCHEMAS)[0]
    fields = [avro_source(connect_schema(part)) for part in (first.key, first.value)]

    def read(part: bytes | None) -> Any:
        assert part is not None
        schema = without_logical_types(json.loads(recording().schemas[schema_id(part)]))
        return fastavro.schemaless_reader(io.BytesIO(part[5:]), schema, None)

    form = encoder("AVRO", topic=topic, key=name_of(fields[0]), value=name_of(fields[1]), registry=Ids())
    keys = column([read(one.key) for one in known], fields[0].type)
    values = column([read(one.value) for one in known], fields[1].type)
    assert both(topic, form, keys, values) == ([one.key for one in known], [one.value for one in known])


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("converter", [Converter.JSON, Converter.JSON_WITH_SCHEMAS])
def test_json_messages_are_those_of_the_converter(topic: str, converter: Converter) -> None:
    known = messages(topic, converter)
    first = messages(topic, Converter.JSON_WITH_SCHEMAS)[0]
    fields = [arrow_field(connect_schema(part)) for part in (first.key, first.value)]
    loaded = [[json.loads(part or b"null") for part in (one.key, one.value)] for one in known]
    has_schemas = converter is Converter.JSON_WITH_SCHEMAS
    payloads = [[part["payload"] if has_schemas else part for part in pair] for pair in loaded]
    keys = column([from_json(pair[0], fields[0].type) for pair in payloads], fields[0].type)
    values = column([from_json(pair[1], fields[1].type) for pair in payloads], fields[1].type)
    form = encoder("JSON", topic=topic, key=name_of(fields[0]), value=name_of(fields[1]), with_schemas=has_schemas)
    found = both(topic, form, keys, values)
    assert [list(map(json.loads, pair)) for pair in zip(*found, strict=True)] == loaded


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value with bytes instead of their base64."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {one.name: from_json(value[one.name], one.type) for one in kind}
    if pa.types.is_list(kind):
        return [from_json(item, kind.value_type) for item in value]
    return base64.b64decode(value) if pa.types.is_binary(kind) else value
