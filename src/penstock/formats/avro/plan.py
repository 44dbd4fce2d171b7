"""Plans: how messages of each writer schema become columns of the one reader schema.

A plan is made once per writer schema, before any message is read, so that schema resolution costs nothing per message:

- a field is found by its name or the reader's aliases; one that the reader does not have is passed over;
- a field that the writer does not have gets its default: a constant in Avro's encoding, read as a message is;
- an int may become a long, float or double, a long a float or double (exactly, or the message is corrupt), a float a
  double, bytes a string and back;
- milliseconds become microseconds; symbols of an enumeration are text, so new ones need no resolution.

Whatever cannot be resolved becomes a node that refuses: the message is a problem if it has such a value, and the reason
names the field. Messages of other branches of that union are read.

Default values of a schema, in Avro's binary encoding: a plan then reads them as it reads messages.
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
from penstock.formats.compiling import Ints
from penstock.formats.memory import WORD, address

__all__ = ["PlanBuilder", "Tables", "encoded_default", "zigzag"]

_NOWHERE = -1
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
_SAME = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "local-timestamp",
    "local-timestamp-micros": "local-timestamp",
}


class Tables(NamedTuple):
    """A plan, and the memory that it is in."""

    nodes: Ints
    links: Ints
    constants: npt.NDArray[np.uint8]

    @property
    def plan(self) -> ops.Plan:
        """The plan as kernels take it; these tables must be held as long as it is used."""
        constants = address(self.constants)
        return ops.Plan(address(self.nodes), address(self.links), constants, constants + len(self.constants))


class PlanBuilder:
    """Collects the plans of several writer schemas, for one reader schema, in one table."""

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
        """Add a writer schema; return its first node."""
        if not is_wrapped(self._reader):
            return self._resolved(writer, self._reader, 0, "")
        node = self._node(ops.RECORD, 0, "")
        [column] = self._columns[0].children
        self._link(node, [self._resolved(writer, self._reader, column, "")])
        return node

    def tables(self) -> Tables:
        """Return the plan of all that were added."""
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

    def _refused(self, why: str, path: str) -> int:
        self.messages.append(f'field "{path}": {why}' if path else why)
        return self._node(ops.REFUSED, _NOWHERE, path, len(self.messages) - 1)

    # -- resolution ----------------------------------------------------------------------------------------------------

    def _resolved(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        """Return the node that reads `writer` into the column of `reader`."""
        if writer.kind == "union":
            node = self._node(ops.UNION, _NOWHERE, path)
            return self._link(node, [self._resolved(branch, reader, column, path) for branch in writer.branches])
        if reader.kind != "union":
            return self._same(writer, reader, column, path)
        if writer.kind == "null":
            takes_null = any(branch.kind == "null" for branch in reader.branches)
            return self._node(ops.NULL, column, path) if takes_null else self._refused("null, and not nullable", path)
        return self._member(writer, reader, column, path)

    def _member(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        """Read a value into the member of a union that takes it."""
        found = members(reader)
        taker = next((m for m in found if _is(writer, m)), None) or next((m for m in found if _fits(writer, m)), None)
        if taker is None:
            return self._refused(f"{writer} in the message, and no member of the union takes it", path)
        if len(found) == 1:
            return self._same(writer, taker, column, path)
        columns = self._columns[column].children
        own = columns[found.index(taker)]
        node = self._node(ops.MEMBER, column, path)
        self._nodes[node][4] = self._same(writer, taker, own, path)
        return self._link(node, [other for other in columns if other != own])

    def _same(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        if not _fits(writer, reader):
            return self._refused(f"{writer} in the message, expected {reader}", path)
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
        wanted = {one.name: place for place, one in enumerate(reader.fields)}
        taken = {_counterpart(one, writer): one for one in reader.fields}
        links = []
        for one in writer.fields:
            below = _below(path, one.name)
            match = taken.get(one.name)
            if match is None:
                links.append(self._skip(one.type, below))
            else:
                own = self._columns[column].children[wanted[match.name]]
                links.append(self._resolved(one.type, match.type, own, below))
        for place, one in enumerate(reader.fields):
            if _counterpart(one, writer) is None:
                links.append(self._default(one, self._columns[column].children[place], _below(path, one.name)))
        return self._link(node, links)

    def _default(self, one: AvroField, column: int, path: str) -> int:
        if not one.has_default:
            return self._refused("not in the writer's schema, and without a default", path)
        place = len(self._constants)
        self._constants += encoded_default(one.default, one.type, path)
        return self._node(ops.CONSTANT, _NOWHERE, path, place, self._resolved(one.type, one.type, column, path))

    def _array(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        [item] = self._columns[column].children
        node = self._node(ops.ARRAY, column, path)
        below = self._resolved(writer.inner, reader.inner, item, f"{path}[]")
        self._nodes[node][2:4] = [below, _least(writer.inner)]
        return node

    def _map(self, writer: AvroType, reader: AvroType, column: int, path: str) -> int:
        key, value = self._columns[column].children
        node = self._node(ops.MAP, column, path)
        keys = self._node(ops.STRING, key, _below(path, "key"))
        below = self._resolved(writer.inner, reader.inner, value, _below(path, "value"))
        self._nodes[node][2:] = [below, 1 + _least(writer.inner), keys]
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

    # -- what the reader does not want ---------------------------------------------------------------------------------

    def _skip(self, writer: AvroType, path: str) -> int:
        """Return a node that passes over a value; types that hold themselves come back to their own node."""
        if writer in self._skips:
            return self._skips[writer]
        if writer.kind in ("array", "map"):
            return self._skipped_items(writer, path)
        if writer.kind in ("record", "union"):
            node = self._node(ops.RECORD if writer.kind == "record" else ops.UNION, _NOWHERE, path)
            self._skips[writer] = node
            below = [one.type for one in writer.fields] or writer.branches
            return self._link(node, [self._skip(one, path) for one in below])
        if writer.kind == "enum":
            return self._enum(writer, _NOWHERE, path)
        if writer.kind == "null":
            return self._node(ops.NULL, _NOWHERE, path)
        if writer.kind == "fixed":
            return self._node(ops.FIXED, _NOWHERE, path, 0, 0, writer.size)
        return self._node(_LEAVES[writer.kind], _NOWHERE, path)

    def _skipped_items(self, writer: AvroType, path: str) -> int:
        node = self._node(ops.ARRAY if writer.kind == "array" else ops.MAP, _NOWHERE, path)
        self._skips[writer] = node
        keys = self._node(ops.STRING, _NOWHERE, path)
        least = _least(writer.inner) + (writer.kind == "map")
        self._nodes[node][2:] = [self._skip(writer.inner, path), least, keys]
        return node


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _counterpart(one: AvroField, writer: AvroType) -> str | None:
    """Return the writer's name of a reader's field."""
    names = {field.name for field in writer.fields}
    return next((name for name in (one.name, *one.aliases) if name in names), None)


def _is(writer: AvroType, reader: AvroType) -> bool:
    """Say whether a value is of this very type."""
    return writer.kind == reader.kind and writer.simple_name == reader.simple_name and _fits(writer, reader)


def _fits(writer: AvroType, reader: AvroType) -> bool:
    """Say whether a value of one type can be read as the other; what is inside is looked at later."""
    if writer.connect_name != reader.connect_name:
        return False  # the same number, in other units
    if _SAME.get(writer.logical, writer.logical) != _SAME.get(reader.logical, reader.logical):
        return writer.logical in _NAMES_ONLY and reader.logical in _NAMES_ONLY and writer.kind == reader.kind
    if writer.logical == "decimal":
        return writer.scale == reader.scale and (reader.precision <= 38 or writer.kind == reader.kind)
    if writer.kind == reader.kind == "fixed":
        return writer.size == reader.size
    return writer.kind == reader.kind or (writer.kind, reader.kind) in _PROMOTIONS or _text(writer, reader)


def _text(writer: AvroType, reader: AvroType) -> bool:
    """An enumeration is a column of text, whatever the writer has made of it."""
    return (writer.kind, reader.kind) in (("enum", "string"),)


def _least(schema: AvroType) -> int:
    """Return the bytes that a value of this type takes at least."""
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
            return sum(_least(one.type) for one in schema.fields)
    return 1


_NAMES_ONLY = {"", "uuid"}
"""Logical types that change neither the value nor the column."""


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
