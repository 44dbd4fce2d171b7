"""Columns that a newer schema adds to the table of a topic, without brokers and registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.formats import AvroFormat, JsonFormat, RegisteredSchema, SubjectVersion, resolve
from penstock.model import IncludedColumn, TableName, TableSchema, missing_value
from penstock.sources.kafka.sql_options import EnvelopeKind
from penstock.sources.kafka.table_growth import grown_by_schema
from penstock.sources.kafka.topic_table import SourceTopic, TopicTable

TOPIC = SourceTopic(name="orders", id=None, offsets=(0,))
NAME = TableName("topic", "orders")
VERSION = SubjectVersion(2, 7)
ID, V = {"name": "id", "type": "long"}, {"name": "v", "type": ["null", "string"], "default": None}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def envelope(*fields: dict[str, Any]) -> str:
    """The schema of Debezium's records, in which the type of rows is defined once."""
    before = {"name": "before", "type": ["null", record("Value", *fields)], "default": None}
    source = {"name": "source", "type": record("Source", {"name": "lsn", "type": "long"})}
    after, op = {"name": "after", "type": ["null", "Value"], "default": None}, {"name": "op", "type": "string"}
    return json.dumps(record("Envelope", before, after, source, op))


def table(kind: EnvelopeKind, value: Any, *include: IncludedColumn) -> TopicTable:
    key = resolve(AvroFormat(reader_schema=json.dumps(record("Key", ID))))
    return TopicTable.create(NAME, None, TOPIC, key, resolve(value), kind, include)


@pytest.mark.parametrize("kind", [EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT])
def test_rows_of_debezium_records(kind: EnvelopeKind) -> None:
    first = table(kind, AvroFormat(reader_schema=envelope(ID, V)), IncludedColumn("offset", "place"))
    added = [{"name": "x", "type": "int", "default": 5}, {"name": "PLACE", "type": "int", "default": 0}]
    changed = {"name": "v", "type": ["null", "long"], "default": None}
    grown = grown_by_schema(first, RegisteredSchema(kind="AVRO", text=envelope(ID, changed, *added)), VERSION)
    assert grown is not None
    assert grown.shape.columns.names == grown.table_schema().columns.names == ["id", "v", "place", "x"]
    assert missing_value(grown.table_schema().columns.field("x"))[0].as_py() == 5
    assert (grown.gained, grown.schema_version) == (["x"], VERSION)
    stored = TableSchema.from_bytes(grown.table_schema().to_bytes())
    assert stored == grown.table_schema() != first.table_schema()
    assert first.with_logged_columns(stored) == grown
    assert first.with_logged_columns(first.table_schema()) == first
    assert grown_by_schema(grown, RegisteredSchema(kind="AVRO", text=envelope(ID, V, *added)), VERSION) is None
    wider = RegisteredSchema(kind="AVRO", text=envelope(ID, {"name": "y", "type": "double"}))
    again = grown_by_schema(grown, wider, VERSION)
    assert again is not None
    assert again.gained == ["x", "y"]
    assert not missing_value(again.table_schema().columns.field("y"))[0].is_valid


def test_rows_before_a_change_need_the_columns_of_those_after_it() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}}
    wide = {"type": "object", "properties": {"id": {"type": "integer"}, "x": {"type": "string"}}}
    around = {"op": {"type": "string"}, "source": {"type": "object", "properties": {"lsn": {"type": "integer"}}}}
    newer = {"type": "object", "properties": {"before": row, "after": wide, **around}}
    columns = "before STRUCT<id: BIGINT>, after STRUCT<id: BIGINT>, op STRING, source STRUCT<lsn: BIGINT>"
    schema = RegisteredSchema(kind="JSON", text=json.dumps(newer))
    assert grown_by_schema(table(EnvelopeKind.DEBEZIUM, JsonFormat(columns=columns)), schema, VERSION) is None
    grown = grown_by_schema(table(EnvelopeKind.DEBEZIUM_UPSERT, JsonFormat(columns=columns)), schema, VERSION)
    assert grown is not None
    assert grown.table_schema().columns.names == ["id", "x"]


def test_fields_that_are_no_columns() -> None:
    first = table(EnvelopeKind.UPSERT, JsonFormat(columns="v STRING, o STRUCT<k: STRING>"))
    fields = {"id": "integer", "V": "string", "_penstock_x": "string", "a.b": "string"}
    deeper = {"type": "object", "properties": {"k": {"type": "string"}, "l": {"type": "string"}}}
    newer = {"type": "object", "properties": {**{name: {"type": kind} for name, kind in fields.items()}, "o": deeper}}
    assert grown_by_schema(first, RegisteredSchema(kind="JSON", text=json.dumps(newer)), VERSION) is None
    assert grown_by_schema(first, RegisteredSchema(kind="AVRO", text='"string"'), VERSION) is None
    assert grown_by_schema(first, RegisteredSchema(kind="JSON", text="{"), VERSION) is None
