"""Protobuf files from a registry, and the message that a message index denotes."""

from __future__ import annotations

from penstock.formats.framing import INDEX_BITS
from penstock.formats.protobuf.descriptor import ProtoFile, ProtoMessage
from penstock.formats.protobuf.proto_parser import parse_proto
from penstock.formats.protobuf.types import well_known_types
from penstock.formats.schema_registry import RegisteredSchema

__all__ = ["message_at", "registered_files"]


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
