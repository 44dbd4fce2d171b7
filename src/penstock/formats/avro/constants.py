"""Default values of a schema, in Avro's binary encoding: a plan then reads them as it reads messages."""

from __future__ import annotations

import struct
from typing import Any

from penstock.errors import DefiniteError
from penstock.formats.avro.schema import AvroType

__all__ = ["encoded_default", "zigzag"]


def zigzag(number: int) -> bytes:
    """Encode an integer as Avro does."""
    rest = (number << 1) ^ (number >> 63)
    rest &= 2**64 - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encoded_default(value: Any, schema: AvroType, path: str) -> bytes:
    """Encode the default of a field, given as JSON; that of a union belongs to its first branch that takes it."""
    try:
        return _encoded(value, schema)
    except (TypeError, ValueError, KeyError, AttributeError, struct.error) as error:
        message = f"the Avro schema has a default for field {path!r} that is no {schema}"
        raise DefiniteError(message, "Correct the default in the schema.") from error


def _encoded(value: Any, schema: AvroType) -> bytes:
    match schema.kind:
        case "null":
            return _only(value is None, b"")
        case "boolean":
            return _only(isinstance(value, bool), b"\1" if value else b"\0")
        case "int" | "long":
            return _only(isinstance(value, int) and not isinstance(value, bool), b"") + zigzag(value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return _sized(value.encode())
        case "bytes":
            return _sized(value.encode("latin-1"))
        case "fixed":
            return _only(len(value) == schema.size, value.encode("latin-1"))
        case "enum":
            return zigzag(schema.symbols.index(value))
    return _nested(value, schema)


def _nested(value: Any, schema: AvroType) -> bytes:
    match schema.kind:
        case "record":
            parts = (_encoded(value.get(one.name, one.default), one.type) for one in schema.fields)
            return b"".join(parts)
        case "array":
            return _blocks([_encoded(item, schema.inner) for item in value])
        case "map":
            return _blocks([_sized(key.encode()) + _encoded(item, schema.inner) for key, item in value.items()])
    for index, branch in enumerate(schema.branches):
        try:
            return zigzag(index) + _encoded(value, branch)
        except (TypeError, ValueError, KeyError, AttributeError, struct.error):
            continue
    raise ValueError


def _only(right: bool, encoded: bytes) -> bytes:
    if not right:
        raise ValueError
    return encoded


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _blocks(items: list[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"
