"""Fixtures and helpers of the format tests."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from tests.servers import SharedRegistry

from penstock.formats import AvroFormat, Decoded, Registry, RegistryAddress, ResolvedFormat, decode_batch, resolve
from penstock.formats.logical_types import arrow_type


@pytest.fixture
def address(registry: SharedRegistry) -> RegistryAddress:
    return RegistryAddress(url=registry.url)


def batch(messages: Sequence[bytes | None]) -> pa.Array:
    return pa.array(messages, pa.binary())


def decoded(resolved: ResolvedFormat, *messages: bytes | None, registry: Registry | None = None) -> Decoded:
    """Decode messages, and check that rows and problems are well-formed and exclude each other."""
    result = decode_batch(batch(messages), resolved, registry)
    result.rows.validate(full=True)
    assert result.rows.type == arrow_type(resolved)
    for message, row, problem in zip(messages, result.rows.is_valid(), result.problems.is_valid(), strict=True):
        assert message is not None or not problem.as_py()
        assert not (row.as_py() and problem.as_py())
    return result


def rows(resolved: ResolvedFormat, *messages: bytes | None, registry: Registry | None = None) -> list[Any]:
    """Decode valid messages."""
    result = decoded(resolved, *messages, registry=registry)
    assert result.problems.null_count == len(messages), result.problems.to_pylist()
    return list(result.rows.to_pylist(maps_as_pydicts="strict"))


def problem(resolved: ResolvedFormat, message: bytes, registry: Registry | None = None) -> str:
    """Decode one corrupt message; return its problem."""
    [text] = decoded(resolved, message, registry=registry).problems.to_pylist()
    assert text is not None
    return str(text)


def avro(schema: Any) -> ResolvedFormat:
    """Resolve one schema for all messages, without a registry."""
    return resolve(AvroFormat(reader_schema=json.dumps(schema)))


def encoded(schema: Any, value: Any) -> bytes:
    """Encode with fastavro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def framed(schema_id: int, payload: bytes) -> bytes:
    """Prepend the schema id to a message, as registry serializers do."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def record(*fields: Any, name: str = "shop.Order") -> dict[str, Any]:
    """Return the schema of a record, from pairs of name and type or complete fields."""
    field_schemas = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": name, "fields": field_schemas}
