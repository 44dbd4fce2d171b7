"""An Avro schema as a tree of types, read from its JSON text.

Names are resolved here: a type that refers to another by name holds that type itself, so that a recursive schema is a
tree with cycles. Schemas that a registered one refers to are read before it, into the same names.

An Avro schema as JSON text again, complete in itself: every name is defined where it is first used.
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
_REMEDY = "Register or give a valid Avro schema."
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
        """Whether a reader has a value for it where a writer wrote none."""
        return self.default is not _NO_DEFAULT


@dataclass(eq=False)
class AvroType:
    """One type; which of the attributes mean anything depends on its `kind`. Equal only to itself."""

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
    """Connect's name of a logical type, where Avro has none of its own: see `penstock.formats.logical_types`."""

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
        """What a message calls it."""
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.logical or self.connect_name or (f"{self.kind} {self.name}" if self.name else self.kind)


def parse_avro(text: str, references: Sequence[str] = ()) -> AvroType:
    """Read a schema; `references` are the texts that it needs, each after those that it needs itself."""
    names: dict[str, AvroType] = {}
    for needed in references:
        _Parser(names).parse(_loaded(needed), "")
    return _Parser(names).parse(_loaded(text), "")


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        if text.strip().replace(".", "").replace("_", "").isalnum():
            return text.strip()
        message = "an Avro schema is not valid JSON"
        raise DefiniteError(message, _REMEDY) from error


class _Parser:
    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names

    def parse(self, found: Any, namespace: str) -> AvroType:
        if isinstance(found, str):
            return self._named(found, namespace)
        if isinstance(found, list):
            return AvroType("union", branches=[self.parse(branch, namespace) for branch in found])
        if not isinstance(found, dict) or "type" not in found:
            message = "an Avro schema has a type that is neither a name, a list nor an object with a type"
            raise DefiniteError(message, _REMEDY)
        return self._complex(found, namespace)

    def _named(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVE:
            return AvroType(name)
        for candidate in [name] if "." in name else [f"{namespace}.{name}", name]:
            if candidate in self._names:
                return self._names[candidate]
        message = f"an Avro schema refers to a type {name!r} that it does not define"
        raise DefiniteError(message, _REMEDY)

    def _complex(self, found: dict[str, Any], namespace: str) -> AvroType:
        kind = found["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace)
        match kind:
            case "record" | "error":
                return self._record(found, namespace)
            case "enum":
                return self._define(found, namespace, AvroType("enum", symbols=list(_needed(found, "symbols", list))))
            case "fixed":
                made = self._define(found, namespace, AvroType("fixed", size=_needed(found, "size", int)))
                return _logical(made, found)
            case "array":
                return AvroType("array", items=self.parse(found.get("items"), namespace))
            case "map":
                return AvroType("map", items=self.parse(found.get("values"), namespace))
        named = self._named(kind, namespace)
        return _meant(_logical(AvroType(kind), found), found) if kind in _PRIMITIVE else named

    def _record(self, found: dict[str, Any], namespace: str) -> AvroType:
        made = _meant(self._define(found, namespace, AvroType("record")), found)
        within = made.name.rpartition(".")[0]
        for one in _needed(found, "fields", list):
            if not isinstance(one, dict):
                message = f"the Avro record {made.name!r} has a field that is not an object"
                raise DefiniteError(message, _REMEDY)
            made.fields.append(
                AvroField(
                    _needed(one, "name", str),
                    self.parse(one.get("type"), within),
                    one.get("default", _NO_DEFAULT),
                    tuple(one.get("aliases", ())),
                )
            )
        return made

    def _define(self, found: dict[str, Any], namespace: str, made: AvroType) -> AvroType:
        name = _needed(found, "name", str)
        within = found.get("namespace", namespace)
        made.name = name if "." in name or not within else f"{within}.{name}"
        made.aliases = tuple(found.get("aliases", ()))
        self._names[made.name] = made
        return made


def _logical(made: AvroType, found: dict[str, Any]) -> AvroType:
    """Take in the logical type where it fits; one that does not is ignored, as Avro asks."""
    logical = found.get("logicalType")
    if not isinstance(logical, str) or made.kind not in _LOGICAL.get(logical, ()):
        return made
    if logical == "decimal":
        precision, scale = found.get("precision"), found.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
            return made
        made.precision, made.scale = precision, scale
    made.logical = logical
    return made


def _meant(made: AvroType, found: dict[str, Any]) -> AvroType:
    """Take in Connect's name of the type, unless Avro has one for it."""
    if not made.logical and found.get("connect.name") in NAMES:
        made.connect_name = found["connect.name"]
    return made


def _needed(found: dict[str, Any], key: str, kind: type[Any]) -> Any:
    if isinstance(found.get(key), kind):
        return found[key]
    message = f"an Avro schema has a {found.get('type', 'field')!r} without {key!r}"
    raise DefiniteError(message, _REMEDY)


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
    """Write a schema, with all that it refers to, as one text."""
    return json.dumps(_written(schema, set()), ensure_ascii=False)


def _written(schema: AvroType, defined: set[str]) -> Any:
    if schema.name:
        if schema.name in defined:
            return schema.name
        defined.add(schema.name)
    match schema.kind:
        case "union":
            return [_written(branch, defined) for branch in schema.branches]
        case "record":
            fields = [_field(one, defined) for one in schema.fields]
            written = {"type": "record", "name": schema.name, "aliases": list(schema.aliases), "fields": fields}
            return _connect_text(written, schema)
        case "enum":
            return {"type": "enum", "name": schema.name, "symbols": schema.symbols}
        case "array":
            return {"type": "array", "items": _written(schema.inner, defined)}
        case "map":
            return {"type": "map", "values": _written(schema.inner, defined)}
        case "fixed":
            return _logical_text({"type": "fixed", "name": schema.name, "size": schema.size}, schema)
    told = schema.logical or schema.connect_name
    return _connect_text(_logical_text({"type": schema.kind}, schema), schema) if told else schema.kind


def _field(one: AvroField, defined: set[str]) -> dict[str, Any]:
    written = {"name": one.name, "type": _written(one.type, defined), "aliases": list(one.aliases)}
    return written | ({"default": one.default} if one.has_default else {})


def _logical_text(written: dict[str, Any], schema: AvroType) -> dict[str, Any]:
    if not schema.logical:
        return written
    digits = {"precision": schema.precision, "scale": schema.scale} if schema.logical == "decimal" else {}
    return {**written, "logicalType": schema.logical, **digits}


def _connect_text(written: dict[str, Any], schema: AvroType) -> dict[str, Any]:
    return {**written, "connect.name": schema.connect_name} if schema.connect_name else written
