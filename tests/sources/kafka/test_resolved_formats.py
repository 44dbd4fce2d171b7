"""How the columns of a topic are determined: by the statement, a registry, a descriptor, or its first messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from tests.formats.protos import descriptor_set, in_base64
from tests.servers import SharedRegistry
from tests.sources.kafka.conftest import KEY_PASSWORD, SecureBroker
from tests.sources.kafka.sql_sources import columns, created, creation_error, topic_of
from tests.sources.kafka.tls_proxy import tls_proxy
from tests.sources.kafka.topic_capture import Topics

from penstock.formats import decode_batch
from penstock.sources.kafka.config import KafkaConfig

ORDER = {"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "string"}]}
PROTO = 'syntax = "proto3"; package shop; message Item { int64 id = 1; string name = 2; }'
SOURCE = {"version": "3.2.0", "connector": "postgresql", "snapshot": "false", "lsn": 7, "sequence": '["1","7"]'}
TABLE = {
    "type": "struct",
    "optional": True,
    "fields": [
        {"field": "id", "type": "int32", "optional": False},
        {"field": "name", "type": "string", "optional": True},
        {"field": "tags", "type": "array", "items": {"type": "string"}},
    ],
}

FROM = {"type": "struct", "fields": [{"field": "lsn", "type": "int64"}, {"field": "connector", "type": "string"}]}


def record(before: Any, after: Any, op: str = "u") -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1, "transaction": None}


def with_schema(payload: Any, **fields: Any) -> dict[str, Any]:
    named = [{**schema, "field": name} for name, schema in fields.items()]
    return {"schema": {"type": "struct", "fields": named}, "payload": payload}


def value_of(config: KafkaConfig, message: Any) -> Any:
    """Decode one message with the resolved format."""
    decoded = decode_batch(pa.array([json.dumps(message).encode()]), config.produced()[0].value_format)
    assert decoded.problems.to_pylist() == [None]
    return decoded.rows.to_pylist()[0]


class TestGiven:
    """Columns specified in the statement."""

    def test_json(self, topics: Topics) -> None:
        clauses = "KEY FORMAT TEXT VALUE FORMAT JSON COLUMNS (id bigint, tags array<string>) ENVELOPE UPSERT"
        config = created(topics, f"TOPIC '{topic_of(topics)}' {clauses}")
        assert columns(config) == {"text": "string", "id": "int64", "tags": "list<element: string>"}
        assert config.produced()[0].key == ("text",)

    def test_csv(self, topics: Topics) -> None:
        name = topic_of(topics)
        assert list(columns(created(topics, f"TOPIC '{name}' FORMAT CSV COLUMNS 2"))) == ["column1", "column2"]
        config = created(topics, f"TOPIC '{name}' FORMAT CSV COLUMNS (a int, b date) DELIMITER ';'")
        assert columns(config) == {"a": "int32", "b": "date32[day]"}

    def test_avro_without_a_registry(self, topics: Topics) -> None:
        config = created(topics, f"TOPIC '{topic_of(topics)}' FORMAT AVRO SCHEMA '{json.dumps(ORDER)}'")
        assert columns(config) == {"id": "int64", "at": "string"}
        assert not config.produced()[0].value_format.is_framed

    def test_protobuf_descriptor_as_file_and_as_base64(self, topics: Topics, tmp_path: Path) -> None:
        (tmp_path / "shop.desc").write_bytes(descriptor_set(PROTO))
        name = topic_of(topics)
        for descriptor in (tmp_path / "shop.desc", in_base64(PROTO)):
            config = created(
                topics, f"TOPIC '{name}' FORMAT PROTOBUF MESSAGE 'shop.Item' USING DESCRIPTOR '{descriptor}'"
            )
            assert columns(config) == {"id": "int64", "name": "string"}
        error = creation_error(
            topics, f"TOPIC '{name}' FORMAT PROTOBUF MESSAGE 'm' USING DESCRIPTOR '{tmp_path / 'none'}'"
        )
        assert "could not read descriptor set" in error.message
        assert (
            "not valid base64"
            in creation_error(topics, f"TOPIC '{name}' FORMAT PROTOBUF MESSAGE 'm' USING DESCRIPTOR 'x.d'").message
        )

    def test_rows_of_debezium(self, topics: Topics) -> None:
        given = "KEY FORMAT JSON COLUMNS (id bigint) {0} VALUE FORMAT JSON COLUMNS (id bigint, name string) {0}"
        name = topic_of(topics)
        for schemas in ("", "SCHEMAS ENABLED"):
            config = created(topics, f"TOPIC '{name}' {given.format(schemas)} INCLUDE OFFSET ENVELOPE DEBEZIUM")
            assert columns(config) == {"id": "int64", "name": "string", "offset": "int64"}
            assert config.produced()[0].key == ("id",)
            message = record(None, {"id": 1, "name": "x"}, "c")
            found = value_of(config, with_schema(message) if schemas else message)
            assert (found["payload"] if schemas else found)["after"] == {"id": 1, "name": "x"}


class TestInferred:
    """Columns inferred from the first messages."""

    def test_json(self, topics: Topics) -> None:
        name = topic_of(topics, (None, {"id": 1}), (None, {"id": 2, "name": "x"}), (None, None), partitions=3)
        assert columns(created(topics, f"TOPIC '{name}' FORMAT JSON")) == {"id": "int64", "name": "string"}

    def test_sample_consists_of_messages_that_will_be_read_if_any(self, topics: Topics) -> None:
        name = topic_of(topics, (None, {"id": "old"}), (None, {"id": 1}))
        clauses = f"TOPIC '{name}' FORMAT JSON WITH (start offset ="
        assert columns(created(topics, f"{clauses} (1))")) == {"id": "int64"}
        assert columns(created(topics, f"{clauses} latest)")) == {"id": "string"}, (
            "inferred from all messages, as none will be read"
        )

    def test_no_message(self, topics: Topics) -> None:
        name = topic_of(topics)
        error = creation_error(topics, f"TOPIC '{name}' FORMAT JSON")
        assert f"topic {name} has no messages" in error.message
        assert "JSON COLUMNS (id bigint, …)" in error.hint

    def test_no_message_with_valid_json(self, topics: Topics) -> None:
        name = topic_of(topics, (None, b"\xff"), (None, b"{"))
        assert "COLUMNS (id bigint, …)" in creation_error(topics, f"TOPIC '{name}' FORMAT JSON").hint

    def test_aborted_messages_are_not_sampled(self, topics: Topics) -> None:
        name = topic_of(topics, (None, {"id": 1}))
        producer = topics.transactional()
        producer.begin_transaction()
        producer.produce(name, b'{"other": 1}')
        producer.abort_transaction()
        assert columns(created(topics, f"TOPIC '{name}' FORMAT JSON")) == {"id": "int64"}

    @pytest.mark.parametrize("schemas", [False, True])
    def test_debezium(self, topics: Topics, schemas: bool) -> None:
        """The first records have no `before`, and one is a tombstone; `before` gets the type of `after`."""

        def message(record: Any) -> Any:
            written = {"before": TABLE, "after": TABLE, "source": FROM, "op": {"type": "string"}}
            return with_schema(record, **written) if schemas else record

        def key(number: int) -> Any:
            return with_schema({"id": number}, id={"type": "int32"}) if schemas else {"id": number}

        row = {"id": 1, "name": None, "tags": ["a"]}
        name = topic_of(topics, (key(1), message(record(None, row, "c"))), (key(1), None))
        both = f"TOPIC '{name}' KEY FORMAT JSON VALUE FORMAT JSON"
        config = created(topics, f"{both} ENVELOPE DEBEZIUM")
        integer = "int32" if schemas else "int64"
        assert columns(config) == {"id": integer, "name": "string", "tags": "list<element: string>"}
        found = value_of(config, message(record(row, None, "d")))
        found = found["payload"] if schemas else found
        assert found["after"] is None
        assert (found["before"]["id"], found["source"]["lsn"], found["op"]) == (1, 7, "d")
        if schemas:
            created(topics, f"{both.replace('JSON', 'JSON SCHEMAS ENABLED')} ENVELOPE DEBEZIUM UPSERT")
        else:
            wrong = creation_error(topics, f"{both} SCHEMAS ENABLED ENVELOPE DEBEZIUM")
            assert "requires {schema, payload} messages" in wrong.message

    def test_sampling_continues_after_tombstones(self, topics: Topics) -> None:
        key = {"id": 1}
        name = topic_of(topics, *[(key, None)] * 600, (key, record(None, {"id": 1, "n": 2.5}, "c")))
        config = created(topics, f"TOPIC '{name}' KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM UPSERT")
        assert columns(config) == {"id": "int64", "n": "double"}

    def test_no_debezium_record(self, topics: Topics) -> None:
        name = topic_of(topics, ({"id": 1}, {"id": 1}))
        error = creation_error(topics, f"TOPIC '{name}' KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM")
        assert "no message of the sample is a Debezium record" in error.message
        assert "COLUMNS" in error.hint

    def test_mixed_messages_with_and_without_schemas(self, topics: Topics) -> None:
        """Columns are inferred from all of them; the reader reports the messages that do not match."""
        row = {"id": 1}
        wrapped = with_schema(record(None, row, "c"), before=TABLE, after=TABLE)
        name = topic_of(topics, (row, record(None, row, "c")), (row, wrapped))
        config = created(topics, f"TOPIC '{name}' KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM UPSERT")
        assert columns(config) == {"id": "int64"}


class TestRegistered:
    """Schemas of a real registry."""

    def using(self, registry: SharedRegistry) -> str:
        return f"USING SCHEMA REGISTRY '{registry.url}'"

    def test_each_format(self, topics: Topics, registry: SharedRegistry) -> None:
        name = topic_of(topics)
        registry.register(f"{name}-value", json.dumps(ORDER))
        registry.register(
            f"{name}-key", json.dumps({"type": "object", "properties": {"k": {"type": "integer"}}}), "JSON"
        )
        registry.register(f"{name}-other", PROTO, "PROTOBUF")
        both = f"TOPIC '{name}' KEY FORMAT JSON VALUE FORMAT AVRO {self.using(registry)} ENVELOPE UPSERT"
        config = created(topics, both)
        assert columns(config) == {"k": "int64", "id": "int64", "at": "string"}
        assert config.produced()[0].key == ("k",)
        config = created(topics, f"TOPIC '{name}' FORMAT PROTOBUF SUBJECT '{name}-other' {self.using(registry)}")
        assert columns(config) == {"id": "int64", "name": "string"}

    def test_keys_without_a_registry(self, topics: Topics, registry: SharedRegistry) -> None:
        name = topic_of(topics)
        registry.register(f"{name}-value", json.dumps(ORDER))
        key = "KEY FORMAT JSON COLUMNS (k bigint) WITHOUT REGISTRY"
        config = created(topics, f"TOPIC '{name}' {key} VALUE FORMAT AVRO {self.using(registry)} ENVELOPE UPSERT")
        (table,) = config.produced()
        assert table.key_format is not None
        assert (table.key_format.is_framed, table.value_format.is_framed) == (False, True)

    def test_missing_subject(self, topics: Topics, registry: SharedRegistry) -> None:
        error = creation_error(topics, f"TOPIC '{topic_of(topics)}' FORMAT AVRO {self.using(registry)}")
        assert "has no subject" in error.message

    def test_registry_with_client_certificate(
        self, topics: Topics, registry: SharedRegistry, secured: SecureBroker, tmp_path: Path
    ) -> None:
        name = topic_of(topics)
        registry.register(f"{name}-value", json.dumps(ORDER))
        registry_url = urlsplit(registry.url)
        assert registry_url.port is not None
        (tmp_path / "password").write_text(KEY_PASSWORD, encoding="utf-8")
        client_certificate = (
            f"schema registry ssl certificate location = '{secured.tls('client.crt')}',"
            f" schema registry ssl key location = '{secured.tls('locked.key')}'"
        )
        key_password = f"schema registry ssl key password = 'file:{tmp_path / 'password'}'"
        trusted = f"schema registry ssl ca location = '{secured.tls('ca.crt')}'"
        with tls_proxy(secured.broker.doors.tls, registry_url.port) as port:
            url = f"https://127.0.0.1:{port}{registry_url.path}"
            clauses = f"TOPIC '{name}' FORMAT AVRO USING SCHEMA REGISTRY '{url}' WITH"
            assert columns(created(topics, f"{clauses} ({trusted}, {client_certificate}, {key_password})")) == {
                "id": "int64",
                "at": "string",
            }
            assert (
                "could not load certificates"
                in creation_error(topics, f"{clauses} ({trusted}, {client_certificate})").message
            )
            with pytest.raises(Exception, match="does not respond"):
                created(topics, f"{clauses} ({trusted})")
