"""Protobuf files that take in the fields of newer ones, each at the end of its message."""

from __future__ import annotations

from dataclasses import replace

from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoFile, ProtoMessage
from penstock.formats.protobuf.types import field_kind, type_of

__all__ = ["grown_files"]


def grown_files(ours: list[ProtoFile], theirs: list[ProtoFile], obstacles: list[str]) -> list[ProtoFile]:
    """Return our files with what theirs add; what differs otherwise is noted as an obstacle."""
    growth = _Growth(Pool(ours), Pool(theirs), obstacles)
    grown = [replace(file, messages=[growth.grown(one) for one in file.messages]) for file in ours]
    known, names = set(growth.ours.messages), set(growth.ours.enums)
    new = ProtoFile(
        messages=[
            replace(one, messages=[], enums=[]) for name, one in growth.theirs.messages.items() if name not in known
        ],
        enums=[one for name, one in growth.theirs.enums.items() if name not in names],
    )
    return [new, *grown]


class _Growth:
    def __init__(self, ours: Pool, theirs: Pool, obstacles: list[str]) -> None:
        self.ours = ours
        self.theirs = theirs
        self._obstacles = obstacles

    def grown(self, message: ProtoMessage) -> ProtoMessage:
        below = [self.grown(one) for one in message.messages]
        newer = self.theirs.messages.get(message.name)
        if newer is None:
            return replace(message, messages=below)
        numbers = {one.number: one for one in message.fields}
        added = []
        for other in newer.fields:
            if other.number not in numbers:
                added.append(self._absolute(other, newer.name))
            elif not self._same(numbers[other.number], other, message.name):
                self._obstacles.append(f'field "{message.name}.{other.name}": another type in the newer schema')
        return replace(message, messages=below, fields=[*message.fields, *added])

    def _same(self, ours: ProtoField, theirs: ProtoField, scope: str) -> bool:
        kind = field_kind(self.ours, ours, scope)
        if ours.repeated != theirs.repeated or kind != field_kind(self.theirs, theirs, scope):
            return False
        return kind not in (ops.MESSAGE, ops.ENUM) or type_of(self.ours, ours, scope) == type_of(
            self.theirs, theirs, scope
        )

    def _absolute(self, field: ProtoField, scope: str) -> ProtoField:
        """Name a type in full: the field moves to where its name might mean another."""
        return replace(field, type_name=f".{type_of(self.theirs, field, scope)}") if field.type_name else field
