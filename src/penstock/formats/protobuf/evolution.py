"""Schema evolution for Protobuf: merge the new fields of newer files, each at the end of its message."""

from __future__ import annotations

from dataclasses import replace

from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoFile, ProtoMessage
from penstock.formats.protobuf.types import field_kind, type_of

__all__ = ["merge_proto_files"]


def merge_proto_files(ours: list[ProtoFile], theirs: list[ProtoFile], conflicts: list[str]) -> list[ProtoFile]:
    """Return our files with the fields that theirs add; other differences are appended to `conflicts`."""
    merger = _Merger(Pool(ours), Pool(theirs), conflicts)
    merged = [replace(file, messages=[merger.merge(one) for one in file.messages]) for file in ours]
    known, names = set(merger.ours.messages), set(merger.ours.enums)
    new = ProtoFile(
        messages=[
            replace(one, messages=[], enums=[]) for name, one in merger.theirs.messages.items() if name not in known
        ],
        enums=[one for name, one in merger.theirs.enums.items() if name not in names],
    )
    return [new, *merged]


class _Merger:
    def __init__(self, ours: Pool, theirs: Pool, conflicts: list[str]) -> None:
        self.ours = ours
        self.theirs = theirs
        self._conflicts = conflicts

    def merge(self, message: ProtoMessage) -> ProtoMessage:
        below = [self.merge(one) for one in message.messages]
        newer = self.theirs.messages.get(message.name)
        if newer is None:
            return replace(message, messages=below)
        numbers = {one.number: one for one in message.fields}
        added = []
        for other in newer.fields:
            if other.number not in numbers:
                added.append(self._absolute(other, newer.name))
            elif not self._same(numbers[other.number], other, message.name):
                self._conflicts.append(f'field "{message.name}.{other.name}": type differs in the newer schema')
        return replace(message, messages=below, fields=[*message.fields, *added])

    def _same(self, ours: ProtoField, theirs: ProtoField, scope: str) -> bool:
        kind = field_kind(self.ours, ours, scope)
        if ours.repeated != theirs.repeated or kind != field_kind(self.theirs, theirs, scope):
            return False
        return kind not in (ops.MESSAGE, ops.ENUM) or type_of(self.ours, ours, scope) == type_of(
            self.theirs, theirs, scope
        )

    def _absolute(self, field: ProtoField, scope: str) -> ProtoField:
        """Use the full name of the field's type: in the merged message, a relative name could denote another."""
        return replace(field, type_name=f".{type_of(self.theirs, field, scope)}") if field.type_name else field
