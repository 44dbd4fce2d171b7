"""Messages and enumerations of Protobuf, whether they came from a descriptor set or from the text of a .proto file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from penstock.errors import DefiniteError

__all__ = ["Pool", "ProtoEnum", "ProtoField", "ProtoFile", "ProtoMessage", "files_of_text", "files_text"]


@dataclass
class ProtoField:
    """A field; `kind` and `presence` are numbers of `penstock.formats.protobuf.ops`."""

    name: str
    number: int
    kind: int
    type_name: str = ""
    repeated: bool = False
    presence: int = 0


@dataclass
class ProtoEnum:
    """An enumeration: names by number, the first name of a number counts."""

    name: str
    names: dict[int, str] = field(default_factory=dict)


@dataclass
class ProtoMessage:
    """A message; `map_entry` marks the pairs of a map, which descriptors write as messages."""

    name: str
    fields: list[ProtoField] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)
    map_entry: bool = False


@dataclass
class ProtoFile:
    """One file, whose messages stand in the order in which a message index counts them."""

    package: str = ""
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)


class Pool:
    """All messages and enumerations of some files, by full name."""

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
        message = f"there is no Protobuf message {name!r}"
        raise DefiniteError(message, f"Name one that is there: {known}.")

    def resolve(self, name: str, scope: str) -> str:
        """Return the full name that `name` means inside `scope`."""
        if name.startswith("."):
            return name[1:]
        for candidate in _candidates(name, scope):
            if candidate in self.messages or candidate in self.enums:
                return candidate
        message = f"the Protobuf message {scope} refers to a type {name!r} that is not defined"
        raise DefiniteError(message, "Register the schema with all its references, or give a complete descriptor set.")


def _candidates(name: str, scope: str) -> Iterator[str]:
    parts = scope.split(".") if scope else []
    for size in range(len(parts), -1, -1):
        yield ".".join([*parts[:size], name])


_FILES = TypeAdapter(list[ProtoFile])


def files_text(files: list[ProtoFile]) -> str:
    """Write files as JSON, to be stored."""
    return _FILES.dump_json(files).decode()


def files_of_text(text: str) -> list[ProtoFile]:
    """Read what `files_text` wrote."""
    return _FILES.validate_json(text)
