"""Parser of .proto files, as registries store them: proto2 and proto3, limited to the structure of messages.

Options, services, extensions and reserved numbers are skipped. `message_at` finds the message that a message index
denotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.errors import DefiniteError
from penstock.formats.framing import INDEX_BITS
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import ProtoEnum, ProtoField, ProtoFile, ProtoMessage
from penstock.formats.protobuf.types import well_known_types
from penstock.formats.schema_registry import RegisteredSchema

__all__ = ["message_at", "parse_proto", "registered_files"]


_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""
    r"""|(?P<word>[.\w][.\w]*|-?\d[\w.+]*|[{}\[\]()<>=;,:+-]|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL,
)
_LABELS = {"optional", "required", "repeated"}


def parse_proto(text: str) -> ProtoFile:
    """Parse a .proto file; type names are kept as written."""
    return _Reader(text).file()


def _words(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            msg = "unexpected character"
            raise _syntax_error(msg)
        if found["word"]:
            yield found["word"]
        at = found.end()


def _syntax_error(reason: str) -> DefiniteError:
    return DefiniteError(f"invalid Protobuf schema: {reason}", "Register a valid .proto file.")


class _Reader:
    def __init__(self, text: str) -> None:
        self._words = list(_words(text))
        self._at = 0
        self._proto3 = False

    def file(self) -> ProtoFile:
        result = ProtoFile()
        while self._at < len(self._words):
            match word := self._next():
                case "syntax":
                    self._proto3 = self._syntax()
                case "edition":
                    msg = "editions are not supported"
                    raise _syntax_error(msg)
                case "package":
                    result.package = self._next()
                    self._expect(";")
                case "message":
                    result.messages.append(self._message(result.package))
                case "enum":
                    result.enums.append(self._enum(result.package))
                case ";":
                    pass
                case "import" | "option" | "service" | "extend":
                    self._skip_statement()
                case _:
                    msg = f"unexpected {word!r}, expected a definition"
                    raise _syntax_error(msg)
        return result

    def _syntax(self) -> bool:
        self._expect("=")
        word = self._next()[1:-1]
        self._expect(";")
        return word == "proto3"

    def _message(self, scope: str) -> ProtoMessage:
        result = ProtoMessage(_within(scope, self._next()))
        self._expect("{")
        while (word := self._next()) != "}":
            match word:
                case "message" if self._peek(1) == "{":
                    result.messages.append(self._message(result.name))
                case "enum" if self._peek(1) == "{":
                    result.enums.append(self._enum(result.name))
                case "oneof" if self._peek(1) == "{":
                    self._oneof(result)
                case "map" if self._peek() == "<":
                    self._map(result)
                case "option" | "reserved" | "extensions" | "extend":
                    self._skip_statement()
                case ";":
                    pass
                case _:
                    result.fields.append(self._field(word))
        return result

    def _oneof(self, result: ProtoMessage) -> None:
        number = 1 + max((field.oneof for field in result.fields), default=-1)
        self._next()
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                self._skip_statement()
            elif word != ";":
                result.fields.append(self._field(word, number))

    def _field(self, word: str, oneof: int = -1) -> ProtoField:
        label = word if word in _LABELS and self._peek(1) != "=" else ""
        type_name = self._next() if label else word
        if type_name == "group":
            msg = "groups are not supported"
            raise _syntax_error(msg)
        kind = ops.KINDS.get(type_name, ops.MESSAGE)
        explicit = oneof >= 0 or label == "optional" or not self._proto3
        presence = ops.REQUIRED if label == "required" else ops.EXPLICIT if explicit else ops.IMPLICIT
        name, number = self._numbered()
        named = "" if type_name in ops.KINDS else type_name
        return ProtoField(name, number, kind, named, label == "repeated", presence, oneof)

    def _map(self, result: ProtoMessage) -> None:
        """Represent a map as descriptors do: repeated messages with a key and a value."""
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name, number = self._numbered()
        entry = ProtoMessage(f"{result.name}.{_entry_name(name)}", map_entry=True)
        for place, (part, kind) in enumerate((("key", key), ("value", value)), 1):
            named = "" if kind in ops.KINDS else kind
            entry.fields.append(ProtoField(part, place, ops.KINDS.get(kind, ops.MESSAGE), named))
        result.messages.append(entry)
        result.fields.append(ProtoField(name, number, ops.MESSAGE, f".{entry.name}", repeated=True))

    def _numbered(self) -> tuple[str, int]:
        name = self._next()
        self._expect("=")
        number = self._integer()
        if self._peek() == "[":
            self._skip_brackets()
        self._expect(";")
        return name, number

    def _enum(self, scope: str) -> ProtoEnum:
        result = ProtoEnum(_within(scope, self._next()))
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved") and self._peek() != "=":
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                result.names.setdefault(self._integer(), word)
                if self._peek() == "[":
                    self._skip_brackets()
                self._expect(";")
        return result

    def _integer(self) -> int:
        word = self._next()
        sign, word = (-1, self._next()) if word == "-" else (1, word)
        try:
            return sign * int(word, 8 if re.fullmatch(r"0[0-7]+", word) else 0)
        except ValueError:
            msg = f"unexpected {word!r}, expected a number"
            raise _syntax_error(msg) from None

    def _skip_brackets(self) -> None:
        depth = 0
        while True:
            word = self._next()
            depth += (word in "[{") - (word in "]}")
            if depth == 0:
                return

    def _skip_statement(self) -> None:
        """Skip to the end of a statement: its semicolon, or its closing brace."""
        depth = 0
        while True:
            word = self._next()
            depth += (word in "[{") - (word in "]}")
            if depth == 0 and word in (";", "}"):
                if word == "}" and self._peek() == ";":
                    self._next()
                return

    def _peek(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._words[place] if place < len(self._words) else ""

    def _next(self) -> str:
        if self._at >= len(self._words):
            msg = "unexpected end of file"
            raise _syntax_error(msg)
        self._at += 1
        return self._words[self._at - 1]

    def _expect(self, word: str) -> None:
        if (found := self._next()) != word:
            msg = f"unexpected {found!r}, expected {word!r}"
            raise _syntax_error(msg)


def _within(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _entry_name(field: str) -> str:
    """Return the name that protoc gives the entries of a map."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def registered_files(schema: RegisteredSchema) -> list[ProtoFile]:
    """Return the files of a registered schema; its own file is the last."""
    needed = [parse_proto(text) for _, text in schema.references]
    return [*well_known_types(), *needed, parse_proto(schema.text)]


def message_at(file: ProtoFile, packed: int) -> ProtoMessage | None:
    """Return the message of a packed message index (see `penstock.formats.framing`); None if there is none."""
    steps = []
    while packed:
        steps.append((packed & ((1 << INDEX_BITS) - 1)) - 1)
        packed >>= INDEX_BITS
    inside, found = file.messages, None
    for step in reversed(steps):
        inside = [one for one in inside if not one.map_entry]
        if step >= len(inside):
            return None
        found = inside[step]
        inside = found.messages
    return found
