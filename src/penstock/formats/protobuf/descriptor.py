"""Protobuf descriptors: messages and enums by file, and the parser of descriptor sets.

They are parsed from a descriptor set (``protoc --include_imports --descriptor_set_out``), or from the text of a .proto
file (`penstock.formats.protobuf.proto_parser`). A descriptor set is itself a Protobuf message: it is parsed without a
Protobuf library, and only the fields that define the structure of messages are used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from penstock.errors import DefiniteError
from penstock.formats.protobuf import ops

__all__ = [
    "Pool",
    "ProtoEnum",
    "ProtoField",
    "ProtoFile",
    "ProtoMessage",
    "dump_files",
    "load_files",
    "parse_descriptor_set",
]


@dataclass
class ProtoField:
    """A field; `kind` and `presence` are constants of `penstock.formats.protobuf.ops`."""

    name: str
    number: int
    kind: int
    type_name: str = ""
    repeated: bool = False
    presence: int = 0


@dataclass
class ProtoEnum:
    """An enum: names by number; of several names for a number, the first is used."""

    name: str
    names: dict[int, str] = field(default_factory=dict)


@dataclass
class ProtoMessage:
    """A message; `map_entry` marks the entries of a map, which descriptors represent as messages."""

    name: str
    fields: list[ProtoField] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)
    map_entry: bool = False


@dataclass
class ProtoFile:
    """One file; its messages are in the order of message indexes."""

    package: str = ""
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)


class Pool:
    """All messages and enums of several files, by full name."""

    def __init__(self, files: Iterable[ProtoFile]) -> None:
        self.messages: dict[str, ProtoMessage] = {}
        self.enums: dict[str, ProtoEnum] = {}
        for file in files:
            for message in file.messages:
                self._add(message)
            self.enums |= {one.name: one for one in file.enums}

    def _add(self, message: ProtoMessage) -> None:
        self.messages[message.name] = message
        self.enums |= {one.name: one for one in message.enums}
        for below in message.messages:
            self._add(below)

    def message(self, name: str) -> ProtoMessage:
        """Return a message by its full name."""
        if name in self.messages:
            return self.messages[name]
        known = ", ".join(sorted(one for one in self.messages if not one.startswith("google.protobuf."))) or "none"
        message = f"Protobuf message {name!r} does not exist"
        raise DefiniteError(message, f"Specify one of these messages: {known}.")

    def resolve(self, name: str, scope: str) -> str:
        """Return the full name that `name` denotes inside `scope`."""
        if name.startswith("."):
            return name[1:]
        for candidate in _candidates(name, scope):
            if candidate in self.messages or candidate in self.enums:
                return candidate
        message = f"Protobuf message {scope} references type {name!r}, which is not defined"
        raise DefiniteError(
            message, "Register the schema with all its references, or specify a complete descriptor set."
        )


def _candidates(name: str, scope: str) -> Iterator[str]:
    parts = scope.split(".") if scope else []
    for size in range(len(parts), -1, -1):
        yield ".".join([*parts[:size], name])


# -- storage -----------------------------------------------------------------------------------------------------------

_FILES = TypeAdapter(list[ProtoFile])


def dump_files(files: list[ProtoFile]) -> str:
    """Serialize files as JSON, for storage."""
    return _FILES.dump_json(files).decode()


def load_files(text: str) -> list[ProtoFile]:
    """Deserialize the output of `dump_files`."""
    return _FILES.validate_json(text)


# -- descriptor sets ---------------------------------------------------------------------------------------------------

_REPEATED, _REQUIRED = 3, 2
_Fields = dict[int, list[bytes | int]]


def parse_descriptor_set(data: bytes) -> list[ProtoFile]:
    """Parse a descriptor set; the files are in its order."""
    try:
        return [_file(_fields(file)) for file in _many(_fields(data), 1)]
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        message = "invalid Protobuf descriptor set"
        raise DefiniteError(message, "Create it with: protoc --include_imports --descriptor_set_out=FILE …") from error


def _file(found: _Fields) -> ProtoFile:
    package, syntax = _text(found, 2), _text(found, 12)
    if syntax == "editions":
        message = "Protobuf editions are not supported"
        raise DefiniteError(message, 'Use syntax = "proto3" or "proto2".')
    proto3 = syntax == "proto3"
    return ProtoFile(
        package,
        [_message(_fields(one), package, proto3) for one in _many(found, 4)],
        [_enum(_fields(one), package) for one in _many(found, 5)],
    )


def _message(found: _Fields, scope: str, proto3: bool) -> ProtoMessage:
    name = _within(scope, _text(found, 1))
    options = _fields(next(iter(_many(found, 7)), b""))
    return ProtoMessage(
        name,
        [_field(_fields(one), proto3) for one in _many(found, 2)],
        [_message(_fields(one), name, proto3) for one in _many(found, 3)],
        [_enum(_fields(one), name) for one in _many(found, 4)],
        bool(_number(options, 7)),
    )


def _field(found: _Fields, proto3: bool) -> ProtoField:
    label, kind = _number(found, 4), _number(found, 5)
    explicit = not proto3 or 9 in found or kind in (ops.MESSAGE, ops.GROUP)
    presence = ops.REQUIRED if label == _REQUIRED else ops.EXPLICIT if explicit else ops.IMPLICIT
    return ProtoField(_text(found, 1), _number(found, 3), kind, _text(found, 6), label == _REPEATED, presence)


def _enum(found: _Fields, scope: str) -> ProtoEnum:
    enum = ProtoEnum(_within(scope, _text(found, 1)))
    for one in map(_fields, _many(found, 2)):
        number = _number(one, 2)
        enum.names.setdefault(number - (1 << 64) if number >> 63 else number, _text(one, 1))
    return enum


def _within(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _fields(data: bytes) -> _Fields:
    """Return the values of all fields, by number."""
    found: _Fields = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                found[tag >> 3].append(value)
            case 2:
                size, at = _varint(data, at)
                if size > len(data) - at:
                    raise IndexError
                found[tag >> 3].append(data[at : at + size])
                at += size
            case 1 | 5:
                at += 8 if tag & 7 == 1 else 4
            case _:
                raise ValueError
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while data[at] > 127:
        result |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return result | data[at] << shift, at + 1


def _many(found: _Fields, number: int) -> Iterator[bytes]:
    return (value for value in found.get(number, ()) if isinstance(value, bytes))


def _text(found: _Fields, number: int) -> str:
    return next(iter(_many(found, number)), b"").decode()


def _number(found: _Fields, number: int) -> int:
    return next((value for value in found.get(number, ()) if isinstance(value, int)), 0)
