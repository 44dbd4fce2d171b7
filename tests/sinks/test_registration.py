"""Schemas of sinks in a real registry: registered once, evolved with new columns, rejected if not compatible."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.formats.test_registry import serving
from tests.servers import SharedRegistry, unique

from penstock.errors import DefiniteError, TransientError
from penstock.formats import (
    AvroFormat,
    JsonFormat,
    ProtobufFormat,
    Registry,
    RegistryAddress,
    ResolvedFormat,
    decode_batch,
    resolve,
)
from penstock.formats.schema_registry import SchemaReference
from penstock.sinks.encoding import MessageEncoder, MessageFormat, encoder
from penstock.sinks.messages import SinkMessages
from penstock.sinks.schemas.record_names import RecordName

FORMATS: list[MessageFormat] = ["AVRO", "JSON", "PROTOBUF"]
FIRST = pa.struct(
    [pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
)
GROWN = pa.struct([*FIRST, pa.field("price", pa.decimal128(10, 2)), pa.field("doc", pa.struct([("a", pa.int32())]))])
OTHER = pa.struct([pa.field("id", pa.string(), nullable=False)])


@pytest.fixture
def address(registry: SharedRegistry) -> RegistryAddress:
    return RegistryAddress(url=registry.url)


def set_compatibility(address: RegistryAddress, subject: str, level: str) -> None:
    request = urllib.request.Request(
        f"{address.url}/config/{subject}",
        json.dumps({"compatibility": level}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def topic_encoder(form: MessageFormat, topic: str, client: Registry) -> MessageEncoder:
    names = {part: RecordName(f"shop.{part}") for part in ("Key", "Value")}
    return encoder(form, topic=topic, key=names["Key"], value=names["Value"], registry=client)


def encode(form: MessageEncoder, rows: list[Any], kind: pa.StructType) -> tuple[pa.Array, pa.Array]:
    values = pa.array(rows, kind)
    keys = pa.StructArray.from_arrays([values.field("id")], fields=[kind.field("id")])
    zeros = np.zeros(len(rows), np.int64)
    found, encoded = form.encode(SinkMessages(zeros, zeros, values, keys))
    assert found is not None
    return found, encoded


def resolved(form: MessageFormat, address: RegistryAddress, subject: str) -> ResolvedFormat:
    kinds = {"AVRO": AvroFormat, "JSON": JsonFormat, "PROTOBUF": ProtobufFormat}
    return resolve(kinds[form](registry=address), subject=subject)


@pytest.mark.parametrize("form", FORMATS)
def test_source_with_the_same_registry_reads_messages_of_all_versions(
    form: MessageFormat, address: RegistryAddress
) -> None:
    topic = unique("evolving")
    client = Registry(address)
    made = topic_encoder(form, topic, client)
    keys, first = encode(made, [{"id": 1, "at": None, "tags": ["a"]}], FIRST)
    for part in ("key", "value"):
        set_compatibility(address, f"{topic}-{part}", "BACKWARD")
    _, second = encode(made, [{"id": 2, "tags": [], "price": 3, "doc": {"a": 4}}], GROWN)
    _, third = encode(topic_encoder(form, topic, Registry(address)), [{"id": 3, "tags": []}], FIRST)
    assert first[0].as_py()[:5] == third[0].as_py()[:5] != second[0].as_py()[:5]
    reader = resolved(form, address, f"{topic}-value")
    values = pa.concat_arrays([first, second, third])
    found = decode_batch(values.cast(pa.binary()), reader, client)
    assert found.problems.null_count == 3, found.problems
    rows = found.rows.to_pylist()
    assert [(row["id"], row["tags"]) for row in rows] == [(1, ["a"]), (2, []), (3, [])]
    assert [row["doc"] for row in rows] == [None, {"a": 4}, None]
    key = decode_batch(keys.cast(pa.binary()), resolved(form, address, f"{topic}-key"), client)
    assert key.rows.to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("form", FORMATS)
def test_incompatible_schema_is_a_permanent_error(form: MessageFormat, address: RegistryAddress) -> None:
    topic = unique("incompatible")
    made = topic_encoder(form, topic, Registry(address))
    encode(made, [{"id": 1, "tags": []}], FIRST)
    set_compatibility(address, f"{topic}-value", "BACKWARD")
    with pytest.raises(
        DefiniteError, match=f"not compatible with earlier schemas of subject '{topic}-value': ."
    ) as caught:
        encode(made, [{"id": "canary"}], OTHER)
    assert f"/config/{topic}-value" in caught.value.hint
    assert "canary" not in str(caught.value)


def test_invalid_schema_is_a_permanent_error(address: RegistryAddress) -> None:
    with pytest.raises(DefiniteError, match="schema registry rejected the AVRO schema for subject") as caught:
        Registry(address).register(unique("invalid"), "AVRO", '{"type": "nothing"}')
    assert caught.value.hint


def test_schema_with_a_reference(address: RegistryAddress) -> None:
    client, money, bill = Registry(address), unique("money"), unique("bill")
    client.register(money, "AVRO", '{"type":"record","name":"shop.Money","fields":[{"name":"n","type":"long"}]}')
    text = '{"type":"record","name":"shop.Bill","fields":[{"name":"total","type":"shop.Money"}]}'
    number = client.register(bill, "AVRO", text, [SchemaReference("shop.Money", money, 1)])
    found = Registry(address).schema(number)
    assert found is not None
    assert [name for name, _ in found.references] == ["shop.Money"]


# -- responses ---------------------------------------------------------------------------------------------------------


class Responses(BaseHTTPRequestHandler):
    """Responds with the status code that the subject names, and counts the requests."""

    bodies: list[Any] = []  # noqa: RUF012 - one server at a time

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        code = int(self.path.split("/")[2])
        body = {
            200: b'{"id": 7}',
            201: b'{"answer": 7}',
            409: b'{"error_code": 409, "message": "reader\\n lacks x"}',
            422: b"<html>",
            404: b"<html>",
        }.get(code, b"{}")
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def odd_server() -> Iterator[str]:
    Responses.bodies.clear()
    with serving(Responses) as port:
        yield f"http://127.0.0.1:{port}"


def test_schema_is_registered_once(odd_server: str) -> None:
    client = Registry(RegistryAddress(url=odd_server))
    assert [client.register("200", "JSON", "{}") for _ in range(3)] == [7, 7, 7]
    assert Responses.bodies == [{"schema": "{}", "schemaType": "JSON", "references": []}]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (409, DefiniteError, "not compatible with earlier schemas of subject '409': reader lacks x"),
        (422, DefiniteError, "rejected the AVRO schema for subject '422': HTTP 422"),
        (403, DefiniteError, r"denied \(HTTP 403\)"),
        (404, TransientError, "does not respond: HTTP 404"),
        (500, TransientError, "does not respond: HTTP 500"),
        (201, TransientError, "not that of a schema registry"),
    ],
)
def test_other_responses(odd_server: str, code: int, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        Registry(RegistryAddress(url=odd_server)).register(str(code), "AVRO", '"int"')
    if kind is TransientError:
        assert "The sink resumes" in str(caught.value)
    if code == 403:
        assert "permission to register schemas" in str(caught.value)


def test_registry_that_does_not_run_is_a_transient_error() -> None:
    with serving(Responses) as port:
        pass
    with pytest.raises(TransientError, match="does not respond"):
        Registry(RegistryAddress(url=f"http://127.0.0.1:{port}")).register("200", "AVRO", '"int"')
