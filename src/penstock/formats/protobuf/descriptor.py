"""Protobuf messages and enums, parsed from a descriptor set or from the text of a .proto file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from penstock.errors import DefiniteError

__all__ = ["Pool", "ProtoEnum", "ProtoField", "ProtoFile", "ProtoMessage", "dump_files", "load_files"]


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


_FILES = TypeAdapter(list[ProtoFile])


def dump_files(files: list[ProtoFile]) -> str:
    """Serialize files as JSON, for storage."""
    return _FILES.dump_json(files).decode()


def load_files(text: str) -> list[ProtoFile]:
    """Deserialize the output of `dump_files`."""
    return _FILES.validate_json(text)
