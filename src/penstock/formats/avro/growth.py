"""An Avro reader schema that takes in the fields of a newer one, each at the end of its record.

A field that is added without a default is null in messages that are older than it.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.formats.avro.schema import AvroField, AvroType
from penstock.formats.avro.types import column_type, members

__all__ = ["grown_avro"]


def grown_avro(ours: AvroType, theirs: AvroType, obstacles: list[str]) -> AvroType:
    """Return our schema with the fields that theirs adds; what differs otherwise is noted as an obstacle."""
    return _Growth(obstacles).grown(ours, theirs, "")


class _Growth:
    def __init__(self, obstacles: list[str]) -> None:
        self._obstacles = obstacles
        self._made: dict[str, AvroType] = {}

    def grown(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        if ours.kind == "union":
            return self._union(ours, theirs, path)
        theirs = members(theirs)[0] if len(members(theirs)) == 1 else theirs
        if ours.kind == theirs.kind == "record":
            return self._record(ours, theirs, path)
        if ours.kind == theirs.kind and ours.kind in ("array", "map"):
            return replace(ours, items=self.grown(ours.inner, theirs.inner, f"{path}[]"))
        same = column_type(ours) == column_type(theirs) and ours.connect_name == theirs.connect_name
        if ours.kind in ("array", "map") or not same:
            self._obstacles.append(f'field "{path}": {theirs} in the newer schema, {ours} in the reader\'s')
        return ours

    def _union(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        own, other = members(ours), members(theirs)
        if len(own) != 1 or len(other) != 1:
            if [str(one) for one in own] != [str(one) for one in other]:
                self._obstacles.append(f'field "{path}": a union with other members in the newer schema')
            return ours
        grown = self.grown(own[0], other[0], path)
        return replace(ours, branches=[grown if one is own[0] else one for one in ours.branches])

    def _record(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        """Grow a record once: a name is one type wherever it is used."""
        if ours.name in self._made:
            return self._made[ours.name]
        made = replace(ours, fields=[])
        self._made[ours.name] = made
        others = {one.name: one for one in theirs.fields}
        for one in ours.fields:
            below = f"{path}.{one.name}" if path else one.name
            other = others.pop(one.name, None) or next((others.pop(a) for a in one.aliases if a in others), one)
            made.fields.append(replace(one, type=self.grown(one.type, other.type, below)))
        made.fields += [_nullable(one) for one in others.values()]
        return made


def _nullable(one: AvroField) -> AvroField:
    """Return an added field that older messages need not have."""
    if one.has_default:
        return one
    null = AvroType("null")
    if one.type.kind != "union":
        return replace(one, type=AvroType("union", branches=[null, one.type]), default=None)
    if any(branch.kind == "null" for branch in one.type.branches):
        return replace(one, default=None)
    return replace(one, type=replace(one.type, branches=[null, *one.type.branches]), default=None)
