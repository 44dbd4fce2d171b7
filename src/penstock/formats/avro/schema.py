"""Avro schemas as a tree of types: parser and serializer of their JSON text.

The parser resolves names: a type that references another by name holds that type itself, so that a recursive schema is
a tree with cycles. Referenced schemas are parsed first, into the same namespace. The serializer writes a self-contained
schema: every name is defined where it is first used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DefiniteError
from penstock.formats.logical_types import NAMES

__all__ = ["AvroField", "AvroType", "avro_text", "parse_avro"]

_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_HINT = "Register or specify a valid Avro schema."
_NO_DEFAULT = object()


@dataclass(eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    default: Any = _NO_DEFAULT
    aliases: tuple[str, ...] = ()

    @property
    def has_default(self) -> bool:
        """Whether the field has a default, for messages of writers without the field."""
        return self.default is not _NO_DEFAULT


@dataclass(eq=False)
class AvroType:
    """One type; its `kind` determines which attributes are used. Compared by identity."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    items: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)
    size: int = 0
    logical: str = ""
    precision: int = 0
    scale: int = 0
    connect_name: str = ""
    """Connect's logical type, if Avro has none: see `penstock.formats.logical_types`."""

    @property
    def inner(self) -> AvroType:
        """The type of an array's items or a map's values."""
        assert self.items is not None
        return self.items

    @property
    def simple_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        """Return the type as shown in error messages."""
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.logical or self.connect_name or (f"{self.kind} {self.name}" if self.name else self.kind)


def parse_avro(text: str, references: Sequence[str] = ()) -> AvroType:
    """Parse a schema; `references` are the referenced schemas, each after the ones that it references itself."""
    names: dict[str, AvroType] = {}
    for needed in references:
        _Parser(names).parse(_load(needed), "")
    return _Parser(names).parse(_load(text), "")


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        if text.strip().replace(".", "").replace("_", "").isalnum():
            return text.strip()
        message = "Avro schema is not valid JSON"
        raise DefiniteError(message, _HINT) from error


class _Parser:
    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names

    def parse(self, found: Any, namespace: str) -> AvroType:
        if isinstance(found, str):
            return self._named(found, namespace)
        if isinstance(found, list):
            return AvroType("union", branches=[self.parse(branch, namespace) for branch in found])
        if not isinstance(found, dict) or "type" not in found:
            message = "invalid type in Avro schema: expected a name, a list, or an object with a type"
            raise DefiniteError(message, _HINT)
        return self._complex(found, namespace)

    def _named(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVE:
            return AvroType(name)
        for candidate in [name] if "." in name else [f"{namespace}.{name}", name]:
            if candidate in self._names:
                return self._names[candidate]
        message = f"Avro schema references type {name!r}, which is not defined"
        raise DefiniteError(message, _HINT)

    def _complex(self, found: dict[str, Any], namespace: str) -> AvroType:
        kind = found["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace)
        match kind:
            case "record" | "error":
                return self._record(found, namespace)
            case "enum":
                return self._define(found, namespace, AvroType("enum", symbols=list(_required(found, "symbols", list))))
            case "fixed":
                parsed = self._define(found, namespace, AvroType("fixed", size=_required(found, "size", int)))
                return _with_logical_type(parsed, found)
            case "array":
                return AvroType("array", items=self.parse(found.get("items"), namespace))
            case "map":
                return AvroType("map", items=self.parse(found.get("values"), namespace))
        named = self._named(kind, namespace)
        return _with_connect_name(_with_logical_type(AvroType(kind), found), found) if kind in _PRIMITIVE else named

    def _record(self, found: dict[str, Any], namespace: str) -> AvroType:
        parsed = _with_connect_name(self._define(found, namespace, AvroType("record")), found)
        within = parsed.name.rpartition(".")[0]
        for one in _required(found, "fields", list):
            if not isinstance(one, dict):
                message = f"invalid field in Avro record {parsed.name!r}: expected an object"
                raise DefiniteError(message, _HINT)
            parsed.fields.append(
                AvroField(
                    _required(one, "name", str),
                    self.parse(one.get("type"), within),
                    one.get("default", _NO_DEFAULT),
                    tuple(one.get("aliases", ())),
                )
            )
        return parsed

    def _define(self, found: dict[str, Any], namespace: str, parsed: AvroType) -> AvroType:
        name = _required(found, "name", str)
        within = found.get("namespace", namespace)
        parsed.name = name if "." in name or not within else f"{within}.{name}"
        parsed.aliases = tuple(found.get("aliases", ()))
        self._names[parsed.name] = parsed
        return parsed


def _with_logical_type(parsed: AvroType, found: dict[str, Any]) -> AvroType:
    """Set the logical type if it is valid for this type; otherwise ignore it, as the Avro specification requires."""
    logical = found.get("logicalType")
    if not isinstance(logical, str) or parsed.kind not in _LOGICAL.get(logical, ()):
        return parsed
    if logical == "decimal":
        precision, scale = found.get("precision"), found.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
            return parsed
        parsed.precision, parsed.scale = precision, scale
    parsed.logical = logical
    return parsed


def _with_connect_name(parsed: AvroType, found: dict[str, Any]) -> AvroType:
    """Set Connect's logical type, unless Avro has one."""
    if not parsed.logical and found.get("connect.name") in NAMES:
        parsed.connect_name = found["connect.name"]
    return parsed


def _required(found: dict[str, Any], key: str, kind: type[Any]) -> Any:
    if isinstance(found.get(key), kind):
        return found[key]
    message = f"missing or invalid {key!r} in {found.get('type', 'field')!r} of an Avro schema"
    raise DefiniteError(message, _HINT)


_LOGICAL = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "duration": ("fixed",),
}


def avro_text(schema: AvroType) -> str:
    """Serialize a schema with all referenced schemas as one JSON text."""
    return json.dumps(_dump(schema, set()), ensure_ascii=False)


def _dump(schema: AvroType, defined: set[str]) -> Any:
    if schema.name:
        if schema.name in defined:
            return schema.name
        defined.add(schema.name)
    match schema.kind:
        case "union":
            return [_dump(branch, defined) for branch in schema.branches]
        case "record":
            fields = [_field(one, defined) for one in schema.fields]
            written = {"type": "record", "name": schema.name, "aliases": list(schema.aliases), "fields": fields}
            return _connect_text(written, schema)
        case "enum":
            return {"type": "enum", "name": schema.name, "symbols": schema.symbols}
        case "array":
            return {"type": "array", "items": _dump(schema.inner, defined)}
        case "map":
            return {"type": "map", "values": _dump(schema.inner, defined)}
        case "fixed":
            return _logical_text({"type": "fixed", "name": schema.name, "size": schema.size}, schema)
    has_logical_type = schema.logical or schema.connect_name
    return _connect_text(_logical_text({"type": schema.kind}, schema), schema) if has_logical_type else schema.kind


def _field(one: AvroField, defined: set[str]) -> dict[str, Any]:
    written = {"name": one.name, "type": _dump(one.type, defined), "aliases": list(one.aliases)}
    return written | ({"default": one.default} if one.has_default else {})


def _logical_text(written: dict[str, Any], schema: AvroType) -> dict[str, Any]:
    if not schema.logical:
        return written
    digits = {"precision": schema.precision, "scale": schema.scale} if schema.logical == "decimal" else {}
    return {**written, "logicalType": schema.logical, **digits}


def _connect_text(written: dict[str, Any], schema: AvroType) -> dict[str, Any]:
    return {**written, "connect.name": schema.connect_name} if schema.connect_name else written
