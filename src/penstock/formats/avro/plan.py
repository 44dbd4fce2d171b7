"""Plans: how messages of each writer schema are decoded to the columns of the reader schema.

A plan is built once per writer schema, before any message is decoded, so that schema resolution costs nothing per
message:

- a field is matched by its name or the reader's aliases; a field that the reader lacks is skipped;
- a field that the writer lacks gets its default: a constant in Avro's encoding, decoded like a message;
- an int may become a long, float or double, a long a float or double (exactly, or the message is rejected), a float a
  double, bytes a string and vice versa;
- milliseconds become microseconds; symbols of an enum are text, so new ones need no resolution.

A type that cannot be resolved becomes a node that rejects: a message with such a value is rejected, and the reason
names the field. Messages with other branches of that union are decoded.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DefiniteError
from penstock.formats.avro import ops
from penstock.formats.avro.schema import AvroField, AvroType
from penstock.formats.avro.types import is_wrapped, members
from penstock.formats.columns import Columns
from penstock.formats.jit import Ints
from penstock.formats.memory import WORD, address

__all__ = ["PlanBuilder", "Tables", "encoded_default", "zigzag"]

_NO_COLUMN = -1
_NUMBERS = 5
_LEAVES = {
    "boolean": ops.BOOLEAN,
    "int": ops.INT,
    "long": ops.LONG,
    "float": ops.FLOAT,
    "double": ops.DOUBLE,
    "string": ops.STRING,
    "bytes": ops.BYTES,
}
_CONVERSIONS = {
    ("int", "float"): ops.EXACT_FLOAT,
    ("int", "double"): ops.EXACT_DOUBLE,
    ("long", "float"): ops.EXACT_FLOAT,
    ("long", "double"): ops.EXACT_DOUBLE,
    ("float", "double"): ops.FLOAT_TO_DOUBLE,
}
_PROMOTIONS = {*_CONVERSIONS, ("int", "long"), ("string", "bytes"), ("bytes", "string")}
_MILLISECONDS = {"timestamp-millis", "local-timestamp-millis"}
_TIMESTAMP_KINDS = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "local-timestamp",
    "local-timestamp-micros": "local-timestamp",
}


class Tables(NamedTuple):
    """A plan, and the memory that holds it."""

    nodes: Ints
    links: Ints
    constants: npt.NDArray[np.uint8]

    @property
    def plan(self) -> ops.Plan:
        """The plan for kernels; keep these tables alive while it is in use."""
        constants = address(self.constants)
        return ops.Plan(address(self.nodes), address(self.links), constants, constants + len(self.constants))


class PlanBuilder:
    """Builds one table with the plans of several writer schemas for one reader schema."""

    def __init__(self, reader: AvroType, columns: Columns) -> None:
        self._reader = reader
        self._columns = columns
        self._nodes: list[list[int]] = []
        self._links: list[int] = []
        self._constants = bytearray()
        self._skips: dict[AvroType, int] = {}
        self.names: list[str] = []
        self.messages: list[str] = []

    def add(self, writer: AvroType) -> int:
        """Add a writer schema; return its root node."""
        if not is_wrapped(self._reader):
            return self._resolved(writer, self._reader, 0, "")
        node = self._node(ops.RECORD, 0, "")
        [column] = self._columns[0].children
        self._link(node, [self._resolved(writer, self._reader, column, "")])
        return node

    def tables(self) -> Tables:
        """Return the plan of all writer schemas added."""
        nodes = np.zeros((len(self._nodes), ops.NODE // WORD), np.int64)
        nodes[:, :_NUMBERS] = self._nodes
        return Tables(nodes, np.array(self._links, np.int64), np.frombuffer(bytes(self._constants) + b"\0", np.uint8))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, op: int, column: int, path: str, *numbers: int) -> int:
        self._nodes.append([op, column, *numbers, *([0] * (3 - len(numbers)))])
        self.names.append(path)
        return len(self._nodes) - 1

    def _link(self, node: int, links: list[int]) -> int:
        self._nodes[node][2:4] = [len(self._links), len(links)]
        self._links += links
        return node

    def _rejected(self, reason: str, path: str) -> int:
        self.messages.append(f'field "{path}": {reason}' if path else reason)
        return self._node(ops.REJECTED, _NO_COLUMN, path, len(self.messages) - 1)

    # -- resolution ----------------------------------------------------------------------------------------------------

    def _resolved(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        """Return the node that decodes `writer` to the column of `reader`."""
        if writer.kind == "union":
            node = self._node(ops.UNION, _NO_COLUMN, path)
            return self._link(node, [self._resolved(branch, reader, column, path) for branch in writer.branches])
        if reader.kind != "union":
            return self._resolved_type(writer, reader, column, path)
        if writer.kind == "null":
            is_nullable = any(branch.kind == "null" for branch in reader.branches)
            return (
                self._node(ops.NULL, column, path)
                if is_nullable
                else self._rejected("null in the message, expected a value", path)
            )
        return self._member(writer, reader, column, path)

    def _member(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        """Return the node that decodes a value to the matching member of a union."""
        found = members(reader)
        target = next((m for m in found if _is_same_type(writer, m)), None) or next(
            (m for m in found if _is_compatible(writer, m)), None
        )
        if target is None:
            return self._rejected(f"{writer} in the message, which matches no member of the union", path)
        if len(found) == 1:
            return self._resolved_type(writer, target, column, path)
        columns = self._columns[column].children
        own = columns[found.index(target)]
        node = self._node(ops.MEMBER, column, path)
        self._nodes[node][4] = self._resolved_type(writer, target, own, path)
        return self._link(node, [other for other in columns if other != own])

    def _resolved_type(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        if not _is_compatible(writer, reader):
            return self._rejected(f"{writer} in the message, expected {reader}", path)
        match writer.kind:
            case "record":
                return self._record(writer, reader, column, path)
            case "array":
                return self._array(writer, reader, column, path)
            case "map":
                return self._map(writer, reader, column, path)
            case "enum":
                return self._enum(writer, column, path)
        return self._leaf(writer, reader, column, path)

    def _record(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        node = self._node(ops.RECORD, column, path)
        positions = {one.name: place for place, one in enumerate(reader.fields)}
        reader_fields = {_counterpart(one, writer): one for one in reader.fields}
        links = []
        for one in writer.fields:
            below = _child_path(path, one.name)
            match = reader_fields.get(one.name)
            if match is None:
                links.append(self._skip(one.type, below))
            else:
                own = self._columns[column].children[positions[match.name]]
                links.append(self._resolved(one.type, match.type, own, below))
        for place, one in enumerate(reader.fields):
            if _counterpart(one, writer) is None:
                links.append(self._default(one, self._columns[column].children[place], _child_path(path, one.name)))
        return self._link(node, links)

    def _default(self, one: AvroField, column: int, path: str) -> int:
        if not one.has_default:
            return self._rejected("not in the writer schema, and without a default", path)
        place = len(self._constants)
        self._constants += encoded_default(one.default, one.type, path)
        return self._node(ops.CONSTANT, _NO_COLUMN, path, place, self._resolved(one.type, one.type, column, path))

    def _array(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        [item] = self._columns[column].children
        node = self._node(ops.ARRAY, column, path)
        below = self._resolved(writer.inner, reader.inner, item, f"{path}[]")
        self._nodes[node][2:4] = [below, _min_size(writer.inner)]
        return node

    def _map(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        key, value = self._columns[column].children
        node = self._node(ops.MAP, column, path)
        keys = self._node(ops.STRING, key, _child_path(path, "key"))
        below = self._resolved(writer.inner, reader.inner, value, _child_path(path, "value"))
        self._nodes[node][2:] = [below, 1 + _min_size(writer.inner), keys]
        return node

    def _enum(self, writer: AvroType, column: int, path: str) -> int:
        links = []
        for symbol in writer.symbols:
            links += [len(self._constants), len(symbol.encode())]
            self._constants += symbol.encode()
        node = self._link(self._node(ops.ENUM, column, path), links)
        self._nodes[node][3] = len(writer.symbols)
        return node

    def _leaf(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        if writer.kind == "null":
            return self._node(ops.NULL, column, path)
        if writer.logical == "decimal" and reader.precision <= 38:
            op = ops.DECIMAL if writer.kind == "bytes" else ops.DECIMAL_FIXED
            return self._node(op, column, path, reader.precision, reader.scale, writer.size)
        if writer.kind == "fixed":
            return self._node(ops.FIXED, column, path, 0, 0, writer.size)
        conversion = _CONVERSIONS.get((writer.kind, reader.kind), ops.AS_IS)
        if writer.logical in _MILLISECONDS:
            conversion = ops.TIMES_1000
        text = writer.kind == "bytes" and reader.kind == "string"
        return self._node(ops.STRING if text else _LEAVES[writer.kind], column, path, conversion)

    # -- fields that the reader lacks ----------------------------------------------------------------------------------

    def _skip(self, writer: AvroType, path: str) -> int:
        """Return a node that skips a value; recursive types refer back to their own node."""
        if writer in self._skips:
            return self._skips[writer]
        if writer.kind in ("array", "map"):
            return self._skipped_items(writer, path)
        if writer.kind in ("record", "union"):
            node = self._node(ops.RECORD if writer.kind == "record" else ops.UNION, _NO_COLUMN, path)
            self._skips[writer] = node
            below = [one.type for one in writer.fields] or writer.branches
            return self._link(node, [self._skip(one, path) for one in below])
        if writer.kind == "enum":
            return self._enum(writer, _NO_COLUMN, path)
        if writer.kind == "null":
            return self._node(ops.NULL, _NO_COLUMN, path)
        if writer.kind == "fixed":
            return self._node(ops.FIXED, _NO_COLUMN, path, 0, 0, writer.size)
        return self._node(_LEAVES[writer.kind], _NO_COLUMN, path)

    def _skipped_items(self, writer: AvroType, path: str) -> int:
        node = self._node(ops.ARRAY if writer.kind == "array" else ops.MAP, _NO_COLUMN, path)
        self._skips[writer] = node
        keys = self._node(ops.STRING, _NO_COLUMN, path)
        min_size = _min_size(writer.inner) + (writer.kind == "map")
        self._nodes[node][2:] = [self._skip(writer.inner, path), min_size, keys]
        return node


def _child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _counterpart(one: AvroField, writer: AvroType) -> str | None:
    """Return the writer's name of a reader's field; None if the writer lacks it."""
    names = {field.name for field in writer.fields}
    return next((name for name in (one.name, *one.aliases) if name in names), None)


def _is_same_type(writer: AvroType, reader: AvroType) -> bool:
    """Return whether two types have the same kind and name and are compatible."""
    return writer.kind == reader.kind and writer.simple_name == reader.simple_name and _is_compatible(writer, reader)


def _is_compatible(writer: AvroType, reader: AvroType) -> bool:
    """Return whether a value of one type can be decoded as the other; nested types are checked later."""
    if writer.connect_name != reader.connect_name:
        return False  # the same number in other units
    if _TIMESTAMP_KINDS.get(writer.logical, writer.logical) != _TIMESTAMP_KINDS.get(reader.logical, reader.logical):
        return writer.logical in _NO_EFFECT and reader.logical in _NO_EFFECT and writer.kind == reader.kind
    if writer.logical == "decimal":
        return writer.scale == reader.scale and (reader.precision <= 38 or writer.kind == reader.kind)
    if writer.kind == reader.kind == "fixed":
        return writer.size == reader.size
    return writer.kind == reader.kind or (writer.kind, reader.kind) in _PROMOTIONS or _is_enum_as_string(writer, reader)


def _is_enum_as_string(writer: AvroType, reader: AvroType) -> bool:
    """Return whether a writer's enum is decoded as a string: both are text columns."""
    return (writer.kind, reader.kind) in (("enum", "string"),)


def _min_size(schema: AvroType) -> int:
    """Return the minimum size of a value of this type, in bytes."""
    match schema.kind:
        case "null":
            return 0
        case "float":
            return 4
        case "double":
            return 8
        case "fixed":
            return schema.size
        case "record":
            return sum(_min_size(one.type) for one in schema.fields)
    return 1


_NO_EFFECT = {"", "uuid"}
"""Logical types that change neither the value nor the column."""


def zigzag(number: int) -> bytes:
    """Encode an integer as Avro's zigzag varint."""
    rest = (number << 1) ^ (number >> 63)
    rest &= 2**64 - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encoded_default(value: Any, schema: AvroType, path: str) -> bytes:
    """Encode the default of a field, given as JSON; a union's default belongs to its first branch that accepts it."""
    try:
        return _encoded(value, schema)
    except (TypeError, ValueError, KeyError, AttributeError, struct.error) as error:
        message = f"default of field {path!r} in the Avro schema is not a valid {schema}"
        raise DefiniteError(message, "Correct the default in the schema.") from error


def _encoded(value: Any, schema: AvroType) -> bytes:
    match schema.kind:
        case "null":
            return _require(value is None, b"")
        case "boolean":
            return _require(isinstance(value, bool), b"\1" if value else b"\0")
        case "int" | "long":
            return _require(isinstance(value, int) and not isinstance(value, bool), b"") + zigzag(value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return _sized(value.encode())
        case "bytes":
            return _sized(value.encode("latin-1"))
        case "fixed":
            return _require(len(value) == schema.size, value.encode("latin-1"))
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


def _require(is_valid: bool, encoded: bytes) -> bytes:
    if not is_valid:
        raise ValueError
    return encoded


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _blocks(items: list[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"
