"""Protobuf descriptors: messages and enums by file, and the parser of descriptor sets.

They are parsed from a descriptor set (``protoc --include_imports --descriptor_set_out``), or from the text of a .proto
file (`penstock.formats.protobuf.proto_parser`). A descriptor set is itself a Protobuf message, which Google's library
parses. The fields that define the structure of messages are converted to the dataclasses below, because the catalog
stores, compares and merges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from pydantic import TypeAdapter

from penstock.errors import DefiniteError
from penstock.formats.protobuf import ops

__all__ = [
    "Pool",
    "ProtoEnum",
    "ProtoField",
    "ProtoFile",
    "ProtoMessage",
    "convert_file",
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
    oneof: int = -1
    """The number of its ``oneof`` in the message; -1 for none."""


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

_TYPES = descriptor_pb2.FieldDescriptorProto


def parse_descriptor_set(data: bytes) -> list[ProtoFile]:
    """Parse a descriptor set; the files are in its order."""
    try:
        return [convert_file(file) for file in descriptor_pb2.FileDescriptorSet.FromString(data).file]
    except (DecodeError, UnicodeDecodeError) as error:
        message = "invalid Protobuf descriptor set"
        raise DefiniteError(message, "Create it with: protoc --include_imports --descriptor_set_out=FILE …") from error


def convert_file(file: Any) -> ProtoFile:
    """Convert a `FileDescriptorProto`."""
    if file.syntax == "editions":
        message = "Protobuf editions are not supported"
        raise DefiniteError(message, 'Use syntax = "proto3" or "proto2".')
    package = _text(file.package)
    return ProtoFile(
        package,
        [_message(one, package, file.syntax == "proto3") for one in file.message_type],
        [_enum(one, package) for one in file.enum_type],
    )


def _message(found: Any, scope: str, proto3: bool) -> ProtoMessage:
    name = _within(scope, _text(found.name))
    return ProtoMessage(
        name,
        [_field(one, proto3) for one in found.field],
        [_message(one, name, proto3) for one in found.nested_type],
        [_enum(one, name) for one in found.enum_type],
        found.options.map_entry,
    )


def _field(found: Any, proto3: bool) -> ProtoField:
    kind = found.type if found.HasField("type") else ops.MESSAGE  # then the name denotes a message or an enum
    explicit = not proto3 or found.HasField("oneof_index") or found.type in (ops.MESSAGE, ops.GROUP)
    required = found.label == _TYPES.LABEL_REQUIRED
    presence = ops.REQUIRED if required else ops.EXPLICIT if explicit else ops.IMPLICIT
    repeated = found.label == _TYPES.LABEL_REPEATED
    oneof = found.oneof_index if found.HasField("oneof_index") and not found.proto3_optional else -1
    return ProtoField(_text(found.name), found.number, kind, _text(found.type_name), repeated, presence, oneof)


def _enum(found: Any, scope: str) -> ProtoEnum:
    enum = ProtoEnum(_within(scope, _text(found.name)))
    for one in found.value:
        enum.names.setdefault(one.number, _text(one.name))
    return enum


def _within(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _text(value: str | bytes) -> str:
    """Return a string of a descriptor; Google's library returns one with invalid UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode()
